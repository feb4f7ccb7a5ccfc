/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * "Packet too big" about a packet that was sent on: the program tells its sender, in the numbers of its
 * own leg. No other part could: this host has no socket whose path MTU the kernel could lower, and the
 * sender would repeat the packet for ever. Other ICMP errors are soft ones for an established connection
 * (RFC 5927 section 5.2) and pass to the kernel, as do all errors about another instance's proxied flow.
 */
#pragma once
#include "unknown.h"

enum {
	ICMP_LEN = 8,
	ICMP_UNREACHABLE = 3,
	ICMP_FRAGMENTATION_NEEDED = 4,
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETER_PROBLEM = 12,
	ICMPV6_UNREACHABLE = 1,
	ICMPV6_TOO_BIG = 2,
	ICMPV6_PARAMETER_PROBLEM = 4,
	/* Ports and sequence number: the least that an error must quote (RFC 792). */
	QUOTED = 8,
};

struct icmp {
	__u8 type, code;
	__u16 check;
	__u32 rest;
};

struct quoted {
	__u16 sport, dport;
	__u32 seq;
};

/* Changes the quoted packet to the one that its sender sent; returns the sum of the changes. */
__inline __u64 rewrite_quoted(struct quoted *tcp, const struct entry *back)
{
	__u64 sum = 0;
	__u32 seq = htonl(ntohl(tcp->seq) + back->ack);

	change(&sum, (__u32)tcp->sport | (__u32)tcp->dport << 16, (__u32)back->dport | (__u32)back->sport << 16);
	change(&sum, tcp->seq, seq);
	tcp->sport = back->dport;
	tcp->dport = back->sport;
	tcp->seq = seq;
	return sum;
}

__function int icmp_ipv4(struct __sk_buff *skb)
{
	/* The returning packets: their far end is the sender. */
	struct packet answer = { .key = { .family = 4 }, .tcp = TCP_AT_MAX + 1 };
	struct entry *back;
	struct ipv4 *outer, *inner;
	struct quoted *tcp;
	struct icmp *icmp;
	void *data, *end;
	__u64 sum = 0, inner_sum = 0, pseudo = 0;

	if (linear(skb, ETH_LEN + 2 * IPV4_LEN + ICMP_LEN + QUOTED))
		return NEXT;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	outer = data + ETH_LEN;
	icmp = (void *)(outer + 1);
	inner = (void *)(icmp + 1);
	tcp = (void *)(inner + 1);
	if ((void *)(tcp + 1) > end || outer->version_length != 0x45 || inner->version_length != 0x45)
		return NEXT;
	if (icmp->type != ICMP_UNREACHABLE && icmp->type != ICMP_TIME_EXCEEDED && icmp->type != ICMP_PARAMETER_PROBLEM)
		return NEXT;
	if (outer->fragment & htons(IPV4_OFFSET | IPV4_MORE))
		return NEXT;
	if (inner->protocol != PROTO_TCP || inner->fragment & htons(IPV4_OFFSET))
		return NEXT;
	map_ipv4(&answer.key.src, inner->dst);
	map_ipv4(&answer.key.dst, inner->src);
	answer.key.sport = tcp->dport;
	answer.key.dport = tcp->sport;
	back = bpf_map_lookup_elem(&flows, &answer.key);
	if (!back || back->action != ACTION_SPLICE)
		return error_onward(skb, &answer);
	if (icmp->type != ICMP_UNREACHABLE || icmp->code != ICMP_FRAGMENTATION_NEEDED)
		return NEXT;
	if (outer->ttl <= 1)
		return drop(DROP_TTL);
	sum = rewrite_quoted(tcp, back);
	/* The quoted header's checksum compensates for the quoted addresses. */
	change(&inner_sum, inner->src, back->dst.word[3]);
	change(&inner_sum, inner->dst, back->src.word[3]);
	inner->src = back->dst.word[3];
	inner->dst = back->src.word[3];
	fix_check(&inner->check, inner_sum);
	rewrite_ipv4(outer, &back->src, &back->dst, 0, &pseudo);
	fix_check(&icmp->check, sum);
	count(ICMP);
	return leave(back->ifindex, back->flags);
}

__function int icmp_ipv6(struct __sk_buff *skb)
{
	struct packet answer = { .key = { .family = 6 }, .tcp = TCP_AT_MAX + 1 };
	struct entry *back;
	struct ipv6 *outer, *inner;
	struct quoted *tcp;
	struct icmp *icmp;
	void *data, *end;
	__u64 sum, pseudo = 0, other = 0;
	__u32 i;

	if (linear(skb, ETH_LEN + 2 * IPV6_LEN + ICMP_LEN + QUOTED))
		return NEXT;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	outer = data + ETH_LEN;
	icmp = (void *)(outer + 1);
	inner = (void *)(icmp + 1);
	tcp = (void *)(inner + 1);
	if ((void *)(tcp + 1) > end || inner->next != PROTO_TCP)
		return NEXT;
	if (icmp->type < ICMPV6_UNREACHABLE || icmp->type > ICMPV6_PARAMETER_PROBLEM)
		return NEXT;
	answer.key.src = inner->dst;
	answer.key.dst = inner->src;
	answer.key.sport = tcp->dport;
	answer.key.dport = tcp->sport;
	back = bpf_map_lookup_elem(&flows, &answer.key);
	if (!back || back->action != ACTION_SPLICE)
		return error_onward(skb, &answer);
	if (icmp->type != ICMPV6_TOO_BIG)
		return NEXT;
	if (outer->hop_limit <= 1)
		return drop(DROP_TTL);
	sum = rewrite_quoted(tcp, back);
	for (i = 0; i < 4; i++) {
		change(&sum, inner->src.word[i], back->dst.word[i]);
		change(&sum, inner->dst.word[i], back->src.word[i]);
	}
	inner->src = back->dst;
	inner->dst = back->src;
	rewrite_ipv6(outer, &back->src, &back->dst, 0, &pseudo, &other);
	fix_check(&icmp->check, fold32(sum) + (__u64)fold32(pseudo));
	bpf_csum_update(skb, fold32(other));
	count(ICMP);
	return leave(back->ifindex, back->flags);
}
