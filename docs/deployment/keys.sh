#!/bin/sh
# Makes the keys of a deployment: a certificate authority, the certificates of the proxy and of the SuperLink behind it,
# and a key pair for every node.
#
#     sh keys.sh FOLDER HOST NODE...          for example: sh keys.sh keys fl.example.org site0 site1 site2
#
# HOST is the name or IP address by which the nodes reach the server. What goes where:
#     ca.crt                         server and every node (not secret)
#     server.crt, server.key         the server's proxy
#     superlink.crt, superlink.key   the SuperLink, which only the server's own machine reaches
#     NODE.pub                       server (not secret)
#     NODE                           that node, and nowhere else
#     ca.key                         offline: whoever has it can pretend to be the server
set -eu
[ $# -ge 3 ] || { echo "usage: sh keys.sh FOLDER HOST NODE..." >&2; exit 2; }
folder=$1 host=$2
shift 2
case $host in
    *[!0-9.]*) name=DNS:$host ;;
    *) name=IP:$host ;;
esac
umask 077
mkdir "$folder"
cd "$folder"

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 730 -subj "/CN=fedamp deployment" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout ca.key -out ca.crt 2>/dev/null

certificate() {  # NAME SUBJECT ALTERNATIVE_NAMES
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=$2" -keyout "$1.key" -out "$1.csr" 2>/dev/null
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\nauthorityKeyIdentifier=keyid\n' "$3" > "$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
    rm -f "$1.csr" "$1.ext" ca.srl
}
certificate server "$host" "$name"
certificate superlink localhost "DNS:localhost,IP:127.0.0.1"

for node in "$@"; do
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$node" -f "$node"
done
echo "made in $folder: $(ls | tr '\n' ' ')"
