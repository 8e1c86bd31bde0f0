#!/bin/sh
# Makes the keys of a deployment: a certificate authority, the server's certificate, and a key pair for every node.
#
#     sh keys.sh FOLDER HOST NODE...          for example: sh keys.sh keys fl.example.org site0 site1 site2
#
# HOST is the name or IP address by which the nodes reach the server. What goes where:
#     ca.crt                   server and every node (not secret)
#     server.crt, server.key   server
#     NODE.pub                 server (not secret)
#     NODE                     that node, and nowhere else
#     ca.key                   offline: whoever has it can pretend to be the server
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
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=$host" -keyout server.key -out server.csr 2>/dev/null
# The server app reaches its own SuperLink by the loopback address.
printf 'subjectAltName=%s,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\nauthorityKeyIdentifier=keyid\n' "$name" > server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile server.ext \
    -out server.crt 2>/dev/null
rm -f server.csr server.ext ca.srl

for node in "$@"; do
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$node" -f "$node"
done
echo "made in $folder: $(ls | tr '\n' ' ')"
