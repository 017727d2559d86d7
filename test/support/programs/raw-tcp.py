"""Sends TCP segments that ordinary sockets cannot send, and prints what is received.

raw-tcp.py syn SOURCE DESTINATION whole|fragments   sends one SYN to port 80 and prints, for one second, the flags of each response, such as SA
raw-tcp.py talk SOURCE DESTINATION OFFSET:TEXT...   opens a connection to port 80, sends each text (with escapes) at its offset in the
                                                    stream, 300 ms apart, and prints everything that is received within two seconds
raw-tcp.py flood SOURCE DESTINATION COUNT           sends a SYN from each of many ports as fast as it can, and prints how many responses had
                                                    which flags, such as {"SA": 6000, "RA": 4000}, when none has come for a second

For `syn` and `talk` the namespace must drop the resets of its own kernel, which knows no socket for this connection.
"""
import collections
import ipaddress
import json
import random
import socket
import struct
import sys
import time

mode, source, destination, *rest = sys.argv[1:]
version = ipaddress.ip_address(source).version
here, there = ipaddress.ip_address(source).packed, ipaddress.ip_address(destination).packed
port = random.randrange(20000, 60000)
sending = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
seeing = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800 if version == 4 else 0x86dd))
seeing.settimeout(0.05)


def checksum(data):
    words = struct.unpack('!%dH' % ((len(data) + 1) // 2), data + b'\0' * (len(data) % 2))
    total = sum(words)
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def segment(sequence, acknowledged, flags, data=b'', port=port):
    """A segment with 12 bytes of no-op options, so that it is long enough to be fragmented at multiples of 8."""
    head = struct.pack('!HHIIBBHHH', port, 80, sequence, acknowledged, 8 << 4, flags, 65535, 0, 0) + b'\1' * 12
    pseudo = here + there + struct.pack('!II', len(head) + len(data), 6)
    return head[:16] + struct.pack('!H', checksum(pseudo + head + data)) + head[18:] + data


def send(payload, offset=0, more=0, fragmented=False):
    if version == 4:
        head = struct.pack('!BBHHHBBH', 0x45, 0, 20 + len(payload), port, more << 13 | offset >> 3, 64, 6, 0) + here + there
    else:
        if fragmented:
            payload = struct.pack('!BBHI', 6, 0, offset | more, port) + payload
        head = struct.pack('!IHBB', 6 << 28, len(payload), 44 if fragmented else 6, 64) + here + there
    sending.sendto(head + payload, (destination, 0))


def answers(seconds):
    """The segments received for the connection: sequence number, flags, data."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            packet, (_, _, kind, *_) = seeing.recvfrom(65535)
        except TimeoutError:
            continue
        if kind == 4:  # PACKET_OUTGOING: sent by us
            continue
        tcp = packet[(packet[0] & 15) * 4:struct.unpack('!H', packet[2:4])[0]] if version == 4 else packet[40:40 + struct.unpack('!H', packet[4:6])[0]]
        if packet[9 if version == 4 else 6] == 6 and struct.unpack('!HH', tcp[:4]) == (80, port):
            yield struct.unpack('!I', tcp[4:8])[0], tcp[13], tcp[(tcp[12] >> 4) * 4:]


def names(flags):
    return ''.join(letter for bit, letter in enumerate('FSRPAU') if flags >> bit & 1)


SYN, ACK, PUSH = 2, 16, 8
first = random.randrange(1 << 31)
if mode == 'syn':
    whole = segment(first, 0, SYN)
    if rest == ['whole']:
        send(whole)
    else:
        # In IPv6 the first fragment must contain the whole header (RFC 7112); in IPv4 it is as short as possible.
        cut = 8 if version == 4 else 24
        send(whole[:cut], 0, 1, True)
        send(whole[cut:], cut, 0, True)
    for _, flags, _ in answers(1):
        print(names(flags))
elif mode == 'flood':
    seeing.setsockopt(socket.SOL_SOCKET, 33, 1 << 27)  # SO_RCVBUFFORCE: all responses wait there until all is sent
    for syn in [segment(first, 0, SYN, port=10000 + n) for n in range(int(rest[0]))]:
        send(syn)
    counts = collections.Counter()
    seeing.settimeout(1)
    try:
        while True:
            counts[names(seeing.recv(65535)[20 + 13])] += 1
    except TimeoutError:
        print(json.dumps(counts))
else:
    send(segment(first, 0, SYN))
    theirs = next(sequence for sequence, flags, _ in answers(2) if flags == SYN | ACK) + 1
    send(segment(first + 1, theirs, ACK))
    received = {}
    for step, (offset, text) in enumerate(argument.split(':', 1) for argument in rest):
        send(segment(first + 1 + int(offset), theirs, ACK | PUSH, text.encode().decode('unicode_escape').encode('latin1')))
        for sequence, _, data in answers(0.3 if step + 1 < len(rest) else 2):
            received[sequence] = data
            theirs = max(theirs, sequence + len(data))
    print(b''.join(data for _, data in sorted(received.items())).decode('latin1'))
