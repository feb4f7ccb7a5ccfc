/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The path of offloaded flows, at the ingress of each interface (TCX or clsact): a packet of theirs is rewritten and leaves again,
 * and the kernel's TCP never sees it. Everything else passes.
 *
 *   abi.h      the kernel's interface          options.h  timestamps and SACK
 *   entry.h    the maps                        reset.h    RST made of a packet
 *   packet.h   headers and sums                icmp.h     ICMP errors, translated or sent on
 *   splice.h   one packet of a flow            unknown.h  packets without an entry
 *   witness.h  one of a flow that may be offloaded
 */
#include "icmp.h"
#include "witness.h"

char _license[] SEC("license") = "Dual BSD/GPL";

enum {
	IPV6_OFFSET = 0xfff8,
	IPV6_MORE = 1,
	EXTENSIONS_MAX = 4,
};

/* Whether the packet begins a connection. */
__function int is_syn(struct __sk_buff *skb, const struct packet *packet)
{
	struct tcp tcp;

	return packet->tcp <= TCP_AT_MAX && !bpf_skb_load_bytes(skb, packet->tcp, &tcp, sizeof(tcp)) &&
	       (tcp.flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

/* A flow of another instance, still in its sockets. */
__function int to_owner(struct __sk_buff *skb, const struct packet *packet, const struct entry *entry)
{
	struct hop hop = { .address = entry->dst, .ifindex = entry->ifindex };

	if (comes_from(skb, entry->owner_mac)) {
		count(LOOP);
		return unknown(skb, packet);
	}
	/* Its ends may have begun another connection with this host before the owner's record came. */
	if (knows_better(skb, packet, before_others(entry)))
		return NEXT;
	/* Its owner challenges a SYN. If no record names a flow there, none may exist, and a new connection begins here. */
	if (entry->flags & FLAG_LENT && is_syn(skb, packet))
		return unknown(skb, packet);
	count(FORWARDED);
	return forward(skb, packet, &hop);
}

/*
 * Answers with RST. An RST goes on to the flow's owner: if that lives, its socket
 * must end as well. An entry with a port belongs to a flow without a socket.
 */
__function int refuse(struct __sk_buff *skb, const struct packet *packet, const struct entry *entry)
{
	struct hop hop = { .address = entry->dst, .ifindex = entry->ifindex };
	struct tcp tcp;

	if (!hop.ifindex || entry->dport || comes_from(skb, entry->owner_mac) || packet->tcp > TCP_AT_MAX ||
	    bpf_skb_load_bytes(skb, packet->tcp, &tcp, sizeof(tcp)) || !(tcp.flags & TCP_RST))
		return reset(skb, packet);
	count(FORWARDED);
	return forward(skb, packet, &hop);
}

/* Whether a SYN begins a new connection: its client knows that the one before is over, or has forgotten it. */
__function int begins_after(struct __sk_buff *skb, const struct packet *packet, struct entry *entry)
{
	/* What is entered for another instance stays as it is: that decides. */
	if (!entry->flow_id || entry->flags & (FLAG_DOWN | FLAG_STANDBY) || !is_syn(skb, packet))
		return 0;
	pass_anew(entry, &packet->key);
	return 1;
}

/*
 * Whether the packet is of a connection that an end has begun with this host by the same port, while another instance still tells of the
 * one before, or its end was heard only now: a socket expects a nearer number. First numbers that one kernel chose lie 16 MB apart for
 * each second between them (net/core/secure_seq.c), so that the one may fit the windows of the other.
 */
__function int is_for_socket(struct __sk_buff *skb, const struct packet *packet, const struct entry *entry)
{
	struct tcp tcp;

	if (packet->tcp > TCP_AT_MAX || bpf_skb_load_bytes(skb, packet->tcp, &tcp, sizeof(tcp)))
		return 0;
	if (known(skb, packet) != KNOWN_LIVES)
		return 0;
	return tcp.flags & TCP_SYN ||
	       beyond_expected(skb, packet, ntohl(tcp.seq)) < distance(ntohl(tcp.seq), (__u32)entry->sent);
}

/*
 * The caller looks the entry up, by a key on its own stack: in memory that a separate function was given, verifiers before
 * Linux 6.2 accept no key.
 */
__separate int handle(struct __sk_buff *skb, const struct packet *packet, struct entry *entry)
{
	int verdict;

	if (!packet)
		return NEXT;
	/* Of what this host sends to itself only that is the program's which would be it on the wire. */
	if (unlikely(skb->ingress_ifindex == LOOPBACK)) {
		if (!entry || !(entry->flags & FLAG_BY_LO) || skb->mark == TOLD_MARK)
			return NEXT;
		if (entry->action == ACTION_WITNESS) {
			witness(skb, packet, entry);
			return NEXT;
		}
	}
	if (!entry)
		return unknown(skb, packet);
	if (likely(entry->action == ACTION_SPLICE)) {
		if (unlikely(entry->flags & FLAG_STANDBY || entry->rst_ns) && is_for_socket(skb, packet, entry))
			return NEXT;
		verdict = splice(skb, packet, entry);
		return unlikely(verdict == TOO_LARGE) ? end_both(skb, packet, entry) : verdict;
	}
	switch (entry->action) {
	case ACTION_FORWARD:
		return to_owner(skb, packet, entry);
	case ACTION_GUARD:
		return drop(GUARDED);
	case ACTION_RESET:
		if (begins_after(skb, packet, entry)) {
			count(REUSED);
			return NEXT;
		}
		if (entry->flags & FLAG_STANDBY && knows_better(skb, packet, KNOWN_OVER))
			return NEXT;
		entry->last_ns = bpf_ktime_get_coarse_ns();
		/* Its owner is dead, and who begins another connection knows of its end. */
		if (entry->flags & FLAG_STANDBY && is_syn(skb, packet)) {
			count(REUSED);
			return unknown(skb, packet);
		}
		return refuse(skb, packet, entry);
	case ACTION_WITNESS:
		witness(skb, packet, entry);
		return unknown(skb, packet);
	default:
		return NEXT;
	}
}

/* A fragment that is not the first has no ports: it follows the first one, or passes. */
__function int later_fragment(struct __sk_buff *skb, const struct packet *packet)
{
	struct fragment_key key = { .src = packet->key.src, .dst = packet->key.dst, .id = packet->fragment_id };
	struct fragment *onward;
	__u64 pseudo = 0, other = 0;
	void *data, *end;

	key.family = packet->key.family;
	onward = bpf_map_lookup_elem(&fragments, &key);
	if (!onward)
		return NEXT;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (key.family == 4) {
		struct ipv4 *ip = data + ETH_LEN;

		if ((void *)(ip + 1) > end)
			return NEXT;
		if (ip->ttl <= 1)
			return drop(DROP_TTL);
		rewrite_ipv4(ip, &onward->src, &onward->dst, onward->flags & FLAG_CLEAR_ECN, &pseudo);
	} else {
		struct ipv6 *ip = data + ETH_LEN;

		if ((void *)(ip + 1) > end)
			return NEXT;
		if (ip->hop_limit <= 1)
			return drop(DROP_TTL);
		rewrite_ipv6(ip, &onward->src, &onward->dst, onward->flags & FLAG_CLEAR_ECN, &pseudo, &other);
		bpf_csum_update(skb, fold32(fold32(pseudo) + other));
	}
	count(FRAGMENT);
	return leave(onward->ifindex, onward->flags);
}

__function int from_ipv4(struct __sk_buff *skb)
{
	struct packet packet = {};
	void *data, *end;
	struct ipv4 *ip;
	struct tcp *tcp;
	__u32 length;
	__u16 fragment;

	if (linear(skb, ETH_LEN + IPV4_LEN))
		return NEXT;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	ip = data + ETH_LEN;
	if ((void *)(ip + 1) > end)
		return NEXT;
	if (ip->protocol == PROTO_ICMP)
		return skb->ingress_ifindex == LOOPBACK ? NEXT : icmp_ipv4(skb);
	length = (ip->version_length & 0xf) * 4;
	if (ip->protocol != PROTO_TCP || ip->version_length >> 4 != 4 || length < IPV4_LEN)
		return NEXT;
	map_ipv4(&packet.key.src, ip->src);
	map_ipv4(&packet.key.dst, ip->dst);
	packet.key.family = 4;
	packet.tcp = ETH_LEN + length;
	fragment = ntohs(ip->fragment);
	if (unlikely(fragment & (IPV4_OFFSET | IPV4_MORE))) {
		packet.fragment_id = ip->id;
		packet.first_fragment = 1;
	}
	/* Large packets that the kernel itself makes (BIG TCP) have no length in the header. */
	packet.end = ip->total_length ? ETH_LEN + ntohs(ip->total_length) : skb->len;
	if (packet.end > skb->len)
		return NEXT;
	if (unlikely(fragment & IPV4_OFFSET))
		return later_fragment(skb, &packet);
	if (linear(skb, packet.tcp + TCP_LEN))
		return NEXT;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	tcp = data + packet.tcp;
	if ((void *)(tcp + 1) > end)
		return NEXT;
	packet.key.sport = tcp->sport;
	packet.key.dport = tcp->dport;
	return handle(skb, &packet, bpf_map_lookup_elem(&flows, &packet.key));
}

/*
 * Walks the extension headers to the TCP header, but not past those that no host on the way may
 * touch (authentication, encryption), nor past routing headers that still route: such packets pass.
 */
__inline int find_tcp(struct __sk_buff *skb, struct packet *packet, __u8 next, __u16 *offset)
{
	__u32 at = ETH_LEN + IPV6_LEN, i;

	for (i = 0; i < EXTENSIONS_MAX; i++) {
		__u8 head[8];

		if (likely(next == PROTO_TCP))
			break;
		if (at > TCP_AT_MAX - 8 || bpf_skb_load_bytes(skb, at, head, 8))
			return -1;
		if (next == PROTO_FRAGMENT) {
			__u16 offset_more = (__u16)head[2] << 8 | head[3];

			packet->first_fragment = !!(offset_more & (IPV6_OFFSET | IPV6_MORE));
			packet->fragment_id = pair(head[4], head[5]) | pair(head[6], head[7]) << 16;
			*offset = offset_more & IPV6_OFFSET;
			at += 8;
			next = head[0];
			if (*offset)
				break;
		} else if (next == PROTO_HOPOPTS || next == PROTO_DSTOPTS || (next == PROTO_ROUTING && head[3] == 0)) {
			at += head[1] * 8 + 8;
			next = head[0];
		} else {
			return -1;
		}
	}
	if (next != PROTO_TCP || at > TCP_AT_MAX)
		return -1;
	packet->tcp = at;
	return 0;
}

__function int from_ipv6(struct __sk_buff *skb)
{
	struct packet packet = {};
	__u16 offset = 0;
	void *data, *end;
	struct ipv6 *ip;
	struct tcp *tcp;
	__u32 at;

	if (linear(skb, ETH_LEN + IPV6_LEN))
		return NEXT;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	ip = data + ETH_LEN;
	if ((void *)(ip + 1) > end || ip->head[0] >> 4 != 6)
		return NEXT;
	if (ip->next == PROTO_ICMPV6)
		return skb->ingress_ifindex == LOOPBACK ? NEXT : icmp_ipv6(skb);
	packet.key.src = ip->src;
	packet.key.dst = ip->dst;
	packet.key.family = 6;
	packet.end = ip->payload_length ? ETH_LEN + IPV6_LEN + ntohs(ip->payload_length) : skb->len;
	if (packet.end > skb->len || find_tcp(skb, &packet, ip->next, &offset))
		return NEXT;
	if (unlikely(offset))
		return later_fragment(skb, &packet);
	at = packet.tcp;
	one_register(at);
	if (at > TCP_AT_MAX || linear(skb, at + TCP_LEN))
		return NEXT;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	tcp = data + at;
	if ((void *)(tcp + 1) > end)
		return NEXT;
	packet.key.sport = tcp->sport;
	packet.key.dport = tcp->dport;
	return handle(skb, &packet, bpf_map_lookup_elem(&flows, &packet.key));
}

SEC("classifier")
int offload(struct __sk_buff *skb)
{
	/*
	 * Not for this host: a bridge floods packets for a vanished host, and their copies
	 * would come twice. A packet with a VLAN tag: the VLAN's own interface sees it next.
	 */
	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return NEXT;
	if (skb->protocol == htons(ETH_P_IP))
		return from_ipv4(skb);
	if (skb->protocol == htons(ETH_P_IPV6))
		return from_ipv6(skb);
	return NEXT;
}
