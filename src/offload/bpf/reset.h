/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Makes an RST of the packet that demands it: no socket of this host, and no firewall, is involved. */
#pragma once
#include "packet.h"

enum {
	RST_TTL = 64,
	IPV4_DONT_FRAGMENT = 0x4000,
	CHECK_OFFSET = 16,
};

struct rst {
	struct address src, dst;
	__u16 sport, dport;
	__u32 seq, ack; /* host order */
	__u8 flags;
	__u8 family;
	/* The kernel or the interface completes the checksum when the packet leaves (CHECKSUM_PARTIAL). */
	__u8 partial;
};

/*
 * Whether the interface completes the checksum. Programs cannot read that, but an addition changes
 * a checksum that covers the packet, and leaves one alone that does not yet. Changes the checksum.
 */
__inline int is_partial(struct __sk_buff *skb, __u32 tcp)
{
	__u16 before, after;

	if (bpf_skb_load_bytes(skb, tcp + CHECK_OFFSET, &before, 2) ||
	    bpf_l4_csum_replace(skb, tcp + CHECK_OFFSET, 0, 1, 0) ||
	    bpf_skb_load_bytes(skb, tcp + CHECK_OFFSET, &after, 2))
		return -1;
	return before == after;
}

/* The checksum of a header without payload: complete, or over the pseudo header only. */
__inline __u16 rst_check(const struct rst *rst, const struct tcp *tcp)
{
	const __u16 *word = (const __u16 *)tcp;
	__u64 sum = htons(PROTO_TCP) + htons(TCP_LEN);
	__u32 i;

	/* The prefix of mapped IPv4 addresses would count too, if it were not 0xffff: zero in this sum. */
	for (i = 0; i < 4; i++)
		sum += (__u64)rst->src.word[i] + rst->dst.word[i];
	if (rst->partial)
		return fold16(sum);
	for (i = 0; i < TCP_LEN / 2; i++)
		sum += word[i];
	return ~fold16(sum);
}

/* Turns the packet, whose TCP header is at `tcp` and which was cut to its headers before, into `rst`. */
__function int put_rst(struct __sk_buff *skb, __u32 tcp, const struct rst *rst)
{
	struct tcp header = {};
	void *data, *end;

	if (tcp < ETH_LEN + IPV4_LEN || tcp > 512)
		return -1;
	header.sport = rst->sport;
	header.dport = rst->dport;
	header.seq = htonl(rst->seq);
	header.ack = htonl(rst->ack);
	header.offset = TCP_LEN / 4 << 4;
	header.flags = rst->flags;
	header.check = rst_check(rst, &header);
	if (bpf_skb_store_bytes(skb, tcp, &header, sizeof(header), 0))
		return -1;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (rst->family == 4) {
		struct ipv4 *ip = data + ETH_LEN;
		__u64 sum = 0;

		if ((void *)(ip + 1) > end)
			return -1;
		change(&sum, pair(0, ip->tos), 0);
		change(&sum, ip->total_length, htons(tcp - ETH_LEN + TCP_LEN));
		change(&sum, ip->id, 0);
		change(&sum, ip->fragment, htons(IPV4_DONT_FRAGMENT));
		change(&sum, pair(ip->ttl, 0), pair(RST_TTL, 0));
		change(&sum, ip->src, rst->src.word[3]);
		change(&sum, ip->dst, rst->dst.word[3]);
		ip->tos = 0;
		ip->total_length = htons(tcp - ETH_LEN + TCP_LEN);
		ip->id = 0;
		ip->fragment = htons(IPV4_DONT_FRAGMENT);
		ip->ttl = RST_TTL;
		ip->src = rst->src.word[3];
		ip->dst = rst->dst.word[3];
		fix_check(&ip->check, sum);
	} else {
		struct ipv6 *ip = data + ETH_LEN;

		if ((void *)(ip + 1) > end)
			return -1;
		/* Neither its class nor its flow label is this host's. */
		ip->head[0] = 0x60;
		ip->head[1] = 0;
		ip->head[2] = 0;
		ip->head[3] = 0;
		ip->payload_length = htons(tcp - ETH_LEN - IPV6_LEN + TCP_LEN);
		ip->hop_limit = RST_TTL;
		ip->src = rst->src;
		ip->dst = rst->dst;
	}
	return 0;
}

/* Answers the packet with RST, at the position that its sender expects (RFC 9293 section 3.5.2). */
__function int answer(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 tcp_at = packet->tcp, length;
	struct rst rst = {};
	struct ethernet ethernet;
	struct tcp tcp;
	__u8 mac[6];
	int partial;

	if (packet->first_fragment && packet->key.family == 6)
		return -1;
	if (bpf_skb_load_bytes(skb, tcp_at, &tcp, sizeof(tcp)) || bpf_skb_load_bytes(skb, 0, &ethernet, ETH_LEN))
		return -1;
	if (tcp.flags & TCP_RST)
		return -1;
	partial = is_partial(skb, tcp_at);
	if (partial < 0)
		return -1;
	rst.partial = partial;
	rst.family = packet->key.family;
	rst.src = packet->key.dst;
	rst.dst = packet->key.src;
	rst.sport = packet->key.dport;
	rst.dport = packet->key.sport;
	length = (tcp.offset >> 4) * 4;
	if (tcp.flags & TCP_ACK) {
		rst.seq = ntohl(tcp.ack);
		rst.flags = TCP_RST;
	} else {
		rst.ack = ntohl(tcp.seq) + (packet->end - tcp_at - length) + !!(tcp.flags & TCP_SYN) +
			  !!(tcp.flags & TCP_FIN);
		rst.flags = TCP_RST | TCP_ACK;
	}
	if (bpf_skb_change_tail(skb, tcp_at + TCP_LEN, 0) || put_rst(skb, tcp_at, &rst))
		return -1;
	__builtin_memcpy(mac, ethernet.dst, 6);
	__builtin_memcpy(ethernet.dst, ethernet.src, 6);
	__builtin_memcpy(ethernet.src, mac, 6);
	return bpf_skb_store_bytes(skb, 0, &ethernet, ETH_LEN, 0);
}

/* Whether the packet comes from the interface with this address. */
__inline int comes_from(struct __sk_buff *skb, const __u8 *mac)
{
	struct ethernet *ethernet = (void *)(long)skb->data;
	__u32 i, differs = 0;

	if ((void *)(ethernet + 1) > (void *)(long)skb->data_end)
		return 0;
	for (i = 0; i < 6; i++)
		differs |= ethernet->src[i] ^ mac[i];
	return !differs;
}

/* Whether another instance sent the packet on. */
__function int by_peer(struct __sk_buff *skb)
{
	/* As on loopback, whose interfaces do not differ. */
	const __u8 without[6] = {};
	struct port_range *port_range;
	__u32 i, slot;

	if (comes_from(skb, without))
		return 0;
	for (i = 0; i < PORT_RANGES; i++) {
		/* A copy: the verifier does not track a number whose address was taken. */
		slot = i;
		port_range = bpf_map_lookup_elem(&port_ranges, &slot);
		if (port_range && comes_from(skb, port_range->mac))
			return 1;
	}
	return 0;
}

/*
 * As `answer`, but returns a verdict. The answer takes the packet's way back, except by a peer, whose kernel drops what comes
 * from an address of its own.
 */
__inline int reset(struct __sk_buff *skb, const struct packet *packet)
{
	int by_route = by_peer(skb);

	if (answer(skb, packet))
		return drop(DROP_RST);
	count(RESET);
	return by_route ? bpf_redirect_neigh(skb->ifindex, 0, 0, 0) : bpf_redirect(skb->ifindex, 0);
}
