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

__inline int unknown(struct __sk_buff *skb, const struct packet *packet)
{
	struct service *service;
	__u32 at = packet->tcp, zero = 0;
	struct meta *info = bpf_map_lookup_elem(&meta, &zero);
	struct tcp *tcp;
	__u64 until;
	int resets;

	if (!info || likely(!info->services) || packet->first_fragment)
		return NEXT;
	if (at > TCP_AT_MAX || linear(skb, at + TCP_LEN))
		return NEXT;
	tcp = (void *)(long)skb->data + at;
	if ((void *)(tcp + 1) > (void *)(long)skb->data_end)
		return NEXT;
	if ((tcp->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN || tcp->flags & TCP_RST)
		return NEXT;
	service = service_of(packet);
	if (!service)
		return NEXT;
	until = service->guard_until_ns;
	resets = service->then_reset;
	if (known(skb, packet))
		return NEXT;
	if (bpf_ktime_get_coarse_ns() < until)
		return drop(GUARDED);
	return resets ? reset(skb, packet) : NEXT;
}
