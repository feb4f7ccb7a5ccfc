/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets without an entry. Nearly all are for the kernel. Where user space has said so, those of a connection that this
 * kernel does not know either are held off for moments, while the records of its owner are still on their way, or
 * answered with RST, so that a firewall that drops what it has not tracked cannot leave a client waiting.
 */
#pragma once
#include "splice.h"

__inline struct service *service_of(const struct packet *packet)
{
	struct place place = { .address = packet->key.dst, .port = packet->key.dport, .family = packet->key.family };
	struct service *service = bpf_map_lookup_elem(&services, &place);

	if (service)
		return service;
	place.port = 0;
	return bpf_map_lookup_elem(&services, &place);
}

/* Whether a socket of this host knows the connection, or a listener the cookie that it gave for a SYN. */
__function int known(struct __sk_buff *skb, const struct packet *packet)
{
	struct bpf_sock_tuple tuple = {};
	__u32 at = packet->tcp, length;
	struct bpf_sock *sk;
	int known = 1;
	void *data, *end;
	struct tcp *tcp;

	if (packet->key.family == 4) {
		tuple.ipv4.saddr = packet->key.src.word[3];
		tuple.ipv4.daddr = packet->key.dst.word[3];
		tuple.ipv4.sport = packet->key.sport;
		tuple.ipv4.dport = packet->key.dport;
		sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &packet->key.src, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &packet->key.dst, 16);
		tuple.ipv6.sport = packet->key.sport;
		tuple.ipv6.dport = packet->key.dport;
		sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return 0;
	if (sk->state != BPF_TCP_LISTEN)
		goto release;
	known = 0;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (at > TCP_AT_MAX || data + at + TCP_LEN > end)
		goto release;
	tcp = data + at;
	length = (tcp->offset >> 4) * 4;
	if (length < TCP_LEN || data + at + TCP_LEN > end)
		goto release;
	if (packet->key.family == 4) {
		if (data + ETH_LEN + IPV4_LEN <= end)
			known = !bpf_tcp_check_syncookie(sk, data + ETH_LEN, IPV4_LEN, tcp, TCP_LEN);
	} else if (data + ETH_LEN + IPV6_LEN <= end) {
		known = !bpf_tcp_check_syncookie(sk, data + ETH_LEN, IPV6_LEN, tcp, TCP_LEN);
	}
release:
	bpf_sk_release(sk);
	return known;
}

/* Two instances that each hold the other for the owner would send a packet to and fro. */
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

/* Sent unchanged to the instance at `hop`. */
__function int forward(struct __sk_buff *skb, const struct packet *packet, const struct hop *to)
{
	struct bpf_redir_neigh hop = {};
	void *data, *end;
	__u64 sum = 0;
	__u32 i;

	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (packet->key.family == 4) {
		struct ipv4 *ip = data + ETH_LEN;

		if ((void *)(ip + 1) > end || ip->ttl <= 1)
			return drop(DROP_TTL);
		change(&sum, pair(ip->ttl, 0), pair(ip->ttl - 1, 0));
		ip->ttl -= 1;
		fix_check(&ip->check, sum);
	} else {
		struct ipv6 *ip = data + ETH_LEN;

		if ((void *)(ip + 1) > end || ip->hop_limit <= 1)
			return drop(DROP_TTL);
		change(&sum, pair(0, ip->hop_limit), pair(0, ip->hop_limit - 1));
		ip->hop_limit -= 1;
		bpf_csum_update(skb, fold32(sum));
	}
	if (to->address.word[0] == 0 && to->address.word[1] == 0 && to->address.word[2] == htonl(0xffff)) {
		hop.nh_family = AF_INET;
		hop.ipv4_nh = to->address.word[3];
	} else {
		hop.nh_family = AF_INET6;
		for (i = 0; i < 4; i++)
			hop.ipv6_nh[i] = to->address.word[i];
	}
	begin_sum_of_merged(skb);
	return bpf_redirect_neigh(to->ifindex, &hop, sizeof(hop), 0);
}

/* The instance whose backend legs come from the port that the packet goes to. */
__function struct slice *slice_of(__u16 port)
{
	struct slice *slice;
	__u32 i, slot;

	for (i = 0; i < SLICES; i++) {
		/* A copy: the verifier loses sight of a number whose address was taken. */
		slot = i;
		slice = bpf_map_lookup_elem(&slices, &slot);
		if (slice && slice->last && port >= slice->first && port <= slice->last)
			return slice;
	}
	return 0;
}

/* Whether user space was told of the packet. */
__function int ask(const struct packet *packet, struct service *service, const struct tcp *tcp)
{
	struct stray stray = { .key = packet->key, .kind = EVENT_STRAY };

	/* CPUs that race may ask for a few more: the bound is against floods. */
	if (service->asks <= 0)
		return 0;
	service->asks -= 1;
	stray.seq = ntohl(tcp->seq);
	stray.ack = ntohl(tcp->ack);
	stray.length = packet->end - packet->tcp - (tcp->offset >> 4) * 4;
	stray.flags = tcp->flags;
	return !bpf_ringbuf_output(&events, &stray, sizeof(stray), 0);
}

__function int unknown(struct __sk_buff *skb, const struct packet *packet)
{
	struct service *service;
	__u32 at = packet->tcp, zero = 0;
	struct meta *info = bpf_map_lookup_elem(&meta, &zero);
	struct slice *slice;
	struct tcp tcp;
	__u64 until;
	__u32 then;

	if (!info || likely(!info->services) || packet->first_fragment)
		return NEXT;
	service = service_of(packet);
	if (!service)
		return NEXT;
	if (at > TCP_AT_MAX || linear(skb, at + TCP_LEN) || bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return NEXT;
	slice = slice_of(ntohs(packet->key.dport));
	if ((tcp.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN || (tcp.flags & TCP_RST && !slice))
		return NEXT;
	until = service->guard_until_ns;
	then = service->then;
	if (known(skb, packet))
		return NEXT;
	if (slice && !comes_from(skb, slice->mac)) {
		struct hop *hop = packet->key.family == 4 ? &slice->v4 : &slice->v6;

		if (hop->ifindex) {
			count(SLICED);
			return forward(skb, packet, hop);
		}
	}
	if (tcp.flags & TCP_RST)
		return NEXT;
	/* Who lives may know at once what the others are still about to tell of. */
	if (then == THEN_ASK && ask(packet, service, &tcp))
		return drop(ASKED);
	if (bpf_ktime_get_coarse_ns() < until)
		return drop(GUARDED);
	return then ? reset(skb, packet) : NEXT;
}
