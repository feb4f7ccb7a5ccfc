/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Headers in wire format, and checksums over them. */
#pragma once
#include "entry.h"

enum {
	ETH_P_IP = 0x0800,
	ETH_P_IPV6 = 0x86dd,
	ETH_LEN = 14,
	IPV4_LEN = 20,
	IPV4_OFFSET = 0x1fff,
	IPV4_MORE = 0x2000,
	IPV6_LEN = 40,
	TCP_LEN = 20,
	TCP_HEADER_MAX = 60,
	PROTO_HOPOPTS = 0,
	PROTO_ICMP = 1,
	PROTO_TCP = 6,
	PROTO_ROUTING = 43,
	PROTO_FRAGMENT = 44,
	PROTO_ICMPV6 = 58,
	PROTO_DSTOPTS = 60,
};

struct ethernet {
	__u8 dst[6], src[6];
	__u16 type;
};

struct ipv4 {
	__u8 version_length, tos;
	__u16 total_length, id, fragment;
	__u8 ttl, protocol;
	__u16 check;
	__u32 src, dst;
};

struct ipv6 {
	__u8 head[4]; /* version, traffic class, flow label */
	__u16 payload_length;
	__u8 next, hop_limit;
	struct address src, dst;
};

struct ipv6_fragment {
	__u8 next, zero;
	__u16 offset_more;
	__u32 id;
};

struct tcp {
	__u16 sport, dport;
	__u32 seq, ack;
	__u8 offset, flags;
	__u16 window, check, urgent;
};

enum {
	TCP_FIN = 0x01,
	TCP_SYN = 0x02,
	TCP_RST = 0x04,
	TCP_ACK = 0x10,
	TCP_ECE = 0x40,
	TCP_CWR = 0x80,
};

/* The offsets of a packet's parts, in bytes from the start of the frame. */
struct packet {
	struct key key;
	__u32 tcp; /* the TCP header */
	__u32 end; /* behind the segment: padding may follow */
	__u8 first_fragment;
	__u32 fragment_id;
};

__inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&counters, &what);

	if (counter)
		*counter += 1;
}

__inline int drop(__u32 why)
{
	count(why);
	return DROP;
}

/*
 * A difference of sums (RFC 1624): each changed word is added with its old value's complement. 64 bits hold more of
 * them than a packet has words.
 */
__inline void change(__u64 *sum, __u32 before, __u32 after)
{
	*sum += (__u64)after + (__u32)~before;
}

__inline __u32 fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (__u32)sum + (__u32)(sum >> 32);
}

__inline __u16 fold16(__u64 sum)
{
	__u32 half = fold32(sum);

	half = (half & 0xffff) + (half >> 16);
	return (__u16)half + (__u16)(half >> 16);
}

__inline void fix_check(__u16 *check, __u64 sum)
{
	*check = ~fold16((__u64)(__u16)~*check + sum);
}

/* Two bytes of the wire as the word that counts at an even offset; their order does not matter to the sum. */
__inline __u32 pair(__u8 first, __u8 second)
{
	return first | (__u32)second << 8;
}

__inline void map_ipv4(struct address *address, __u32 ip)
{
	address->word[0] = 0;
	address->word[1] = 0;
	address->word[2] = htonl(0xffff);
	address->word[3] = ip;
}
