"""Answers ARP requests on a link for an address, by a raw socket. Arguments: the link, the address."""

import os
import socket
import sys

link, address = sys.argv[1], socket.inet_aton(sys.argv[2])
arp = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
arp.bind((link, 0x0806))
hardware = arp.getsockname()[4]
os.close(1)
while True:
    frame = arp.recv(2048)
    operation, client, target = frame[20:22], frame[22:32], frame[38:42]
    if operation == b"\0\1" and target == address:
        head = client[:6] + hardware + b"\x08\x06" + frame[14:20]
        arp.send(head + b"\0\2" + hardware + address + client)
