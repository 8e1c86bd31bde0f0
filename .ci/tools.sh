#!/bin/sh
# Puts programs of Debian that tests need into a virtual environment: sh .ci/tools.sh .venv
#
# Nothing is installed, and nobody need be root: packages, with those that they depend on and that are not installed,
# are unpacked below the environment. Where there is such a program already, or none can be had, nothing is done: the
# tests then use that one, or say why they are skipped.
set -eu
venv=$(cd "$1" && pwd -P)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
lists=  # options of apt

own_lists() {  # where the system has no package lists, or old ones, and we may not fetch them for it
    mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
    lists="-o Dir::State::Lists=$scratch/lists -o Dir::Cache=$scratch/cache"
    timeout 120 apt-get -qq $lists update >/dev/null 2>&1
}
download() {  # PACKAGE
    packages=$(apt-get -qq $lists install --simulate --no-install-recommends "$1" 2>/dev/null | awk '/^Inst/ {print $2}')
    [ -n "$packages" ] && apt-get -qq $lists download $packages >/dev/null 2>&1
}
unpack() {  # COMMAND, PACKAGE: into $root; fails where the command is there already, or no package can be had
    if PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || [ -x "$venv/bin/$1" ]; then return 1; fi
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then echo "no $1, and no apt to get it with"; return 1; fi
    root=$venv/debian/$1
    mkdir -p "$scratch/$1"
    cd "$scratch/$1"
    if ! download "$2" && { [ -n "$lists" ] || ! own_lists || ! download "$2"; }; then
        echo "no $1, and none to be had from apt"
        return 1
    fi
    rm -rf "$root"
    mkdir -p "$root"
    for package in *.deb; do dpkg-deb -x "$package" "$root"; done
    libraries=$(find "$root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd :)
}
bring() {  # COMMAND, PACKAGE, the program's file in it
    unpack "$1" "$2" || return 0
    printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$libraries" "$root/$3" >"$scratch/command"
    chmod +x "$scratch/command"
    # The library versions of another release, say: better none than one that does not start.
    if "$scratch/command" --version >/dev/null 2>&1 || "$scratch/command" -v >/dev/null 2>&1; then
        mv "$scratch/command" "$venv/bin/$1"
    else
        rm -rf "$root"
        echo "the $1 of apt does not start here"
    fi
}
bring_latex() {  # Debian names the tree of TeX, and makes its format and its list of fonts, when a package is installed
    unpack pdflatex texlive-latex-recommended || return 0
    texmf=$root/usr/share/texlive/texmf-dist
    cat "$texmf"/fonts/map/dvips/amsfonts/*.map >"$root/pdftex.map"
    cat >"$scratch/command" <<END
#!/bin/sh
export LD_LIBRARY_PATH="$libraries" TEXMFCNF="$texmf/web2c" TEXMFDIST="$texmf" TEXMFDBS=
export TEXMF="{$texmf,$root/usr/share/texmf}" TEXFORMATS="$root" TEXFONTMAPS="$root"
exec "$root/usr/bin/pdftex" "\$@"
END
    chmod +x "$scratch/command"
    if (cd "$root" && "$scratch/command" -ini -etex -jobname=pdflatex '*pdflatex.ini') </dev/null >/dev/null 2>&1; then
        sed 's/pdftex" /pdftex" -fmt=pdflatex /' "$scratch/command" >"$venv/bin/pdflatex"
        chmod +x "$venv/bin/pdflatex"
    else
        rm -rf "$root"
        echo "the pdflatex of apt does not start here"
    fi
}

bring nginx nginx usr/sbin/nginx                                                      # a deployment's proxy
bring nft nftables usr/sbin/nft                                                       # its rules for the ports inside
bring promtool prometheus usr/bin/promtool                                            # its alarms, played
bring chromium-headless-shell chromium-headless-shell usr/lib/chromium/chromium-headless-shell  # pages as they are seen
bring_latex                                                                           # tables of studies, as in a paper
