/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets without an entry. Nearly all are for the kernel. By the rules of user space, the program drops those
 * of a connection that this kernel does not know for moments, while its owner's records are still on their way,
 * or answers them with RST, so that a firewall that drops untracked packets cannot leave a client waiting.
 */
#pragma once
#include "splice.h"

enum {
	/* How long a SYN shows that its connection is not Baton's; conntrack's answer holds for longer. */
	FOREIGN_TRIAL_NS = 2000000000,
	FOREIGN_TELL_EVERY_NS = 100000000,
};

/*
 * Of the questions that user space allows (unknown.rs: ASKS): the share that only
 * repeated packets may ask, and the shares of one address and of one network in a round.
 */
enum {
	ASKS_SPARE = 100,
	ASKS_OF_ADDRESS = 50,
	ASKS_OF_NETWORK = 100,
	ROUND_SHIFT = 27, /* 134 ms */
	/* After this time without a refill, the program does not wait for user space. */
	FILLED_MAX_NS = 2000000000,
	SEEN_SHIFT = 24, /* 17 ms, so that 16 bits hold 18 minutes */
	/* A TCP packet that was unknown for so long belongs to nobody. */
	SEEN_OVER = 3000000000 >> SEEN_SHIFT,
	SEEN_STALE = 10000000000 >> SEEN_SHIFT,
	/* What a slot loses to another packet first: what has not come again in time, then what has come once. */
	LOSES_STALE = 2 << 16,
	LOSES_ONCE = 1 << 16,
};

/* So long before it ends, user space is told and asks conntrack again. Longer than the trial. */
#define FOREIGN_RENEW_NS 30000000000ULL

__inline struct service *service_at(const struct packet *packet, __u16 port)
{
	struct place place = { .address = packet->key.dst, .port = port, .family = packet->key.family };

	return bpf_map_lookup_elem(&services, &place);
}

/* Receive windows are smaller, except on hosts that were tuned for one fast and long link. */
#define BEYOND_WINDOWS (1U << 24)

enum known {
	KNOWN_NOT,
	KNOWN_OVER, /* it has ended here; its ends may have begun another one at another instance */
	KNOWN_LIVES,
};

/* The socket of this host that the packet would reach; the caller must release it. */
__inline struct bpf_sock *socket_of(struct __sk_buff *skb, const struct packet *packet)
{
	struct bpf_sock_tuple tuple = {};

	if (packet->key.family == 4) {
		tuple.ipv4.saddr = packet->key.src.word[3];
		tuple.ipv4.daddr = packet->key.dst.word[3];
		tuple.ipv4.sport = packet->key.sport;
		tuple.ipv4.dport = packet->key.dport;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(tuple.ipv6.saddr, &packet->key.src, 16);
	__builtin_memcpy(tuple.ipv6.daddr, &packet->key.dst, 16);
	tuple.ipv6.sport = packet->key.sport;
	tuple.ipv6.dport = packet->key.dport;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

/* What this host's sockets know of the connection: a socket of its own, or a listener's cookie for its SYN. */
__function int known(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 at, length;
	struct bpf_sock *sk;
	int known = KNOWN_LIVES;
	void *data, *end;
	struct tcp *tcp;

	sk = socket_of(skb, packet);
	if (!sk)
		return KNOWN_NOT;
	/* Also FIN_WAIT2 without a process. */
	if (sk->state == BPF_TCP_TIME_WAIT)
		known = KNOWN_OVER;
	if (sk->state != BPF_TCP_LISTEN)
		goto release;
	known = KNOWN_NOT;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	at = packet->tcp;
	one_register(at);
	if (at > TCP_AT_MAX || data + at + TCP_LEN > end)
		goto release;
	tcp = data + at;
	length = (tcp->offset >> 4) * 4;
	if (length < TCP_LEN || data + at + TCP_LEN > end)
		goto release;
	if (packet->key.family == 4) {
		if (data + ETH_LEN + IPV4_LEN <= end)
			known = bpf_tcp_check_syncookie(sk, data + ETH_LEN, IPV4_LEN, tcp, TCP_LEN) ? KNOWN_NOT : KNOWN_LIVES;
	} else if (data + ETH_LEN + IPV6_LEN <= end) {
		known = bpf_tcp_check_syncookie(sk, data + ETH_LEN, IPV6_LEN, tcp, TCP_LEN) ? KNOWN_NOT : KNOWN_LIVES;
	}
release:
	bpf_sk_release(sk);
	return known;
}

__inline __u32 distance(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0 ? b - a : a - b;
}

/*
 * The distance of the number from the one that the connection's socket expects next. 0 also during its handshake,
 * of which a listener knows no more than its cookie.
 */
__function __u32 beyond_expected(struct __sk_buff *skb, const struct packet *packet, __u32 seq)
{
	struct bpf_tcp_sock *expects;
	struct bpf_sock *sk;
	__u32 beyond = 0;

	sk = socket_of(skb, packet);
	if (!sk)
		return 0;
	expects = sk->state == BPF_TCP_LISTEN ? 0 : bpf_tcp_sock(sk);
	if (expects)
		beyond = distance(seq, expects->rcv_nxt);
	bpf_sk_release(sk);
	return beyond;
}

/*
 * A socket of this host takes precedence over a forwarding entry if its state is more than this. No socket here
 * knew a lent packet, so a connection that is over began since; for a flow's last packets either may answer.
 */
__inline int before_others(const struct entry *entry)
{
	return entry->flags & FLAG_LENT ? KNOWN_NOT : KNOWN_OVER;
}

/*
 * Whether a socket of this host knows more of the connection than `than`, and the packet is for it: a packet far outside
 * any window belongs to a later connection from the same port, and this host did not see the end of the socket's.
 */
__function int knows_better(struct __sk_buff *skb, const struct packet *packet, int than)
{
	int here = known(skb, packet);
	struct tcp tcp;

	if (here <= than)
		return 0;
	if (here != KNOWN_LIVES || packet->tcp > TCP_AT_MAX || bpf_skb_load_bytes(skb, packet->tcp, &tcp, sizeof(tcp)))
		return 1;
	return tcp.flags & TCP_SYN || beyond_expected(skb, packet, ntohl(tcp.seq)) <= BEYOND_WINDOWS;
}

/* Sends the packet unchanged to the instance at `hop`. */
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

/* The instance whose port range contains the packet's destination port. */
__function struct port_range *port_range_of(__u16 port)
{
	struct port_range *port_range;
	__u32 i, slot;

	for (i = 0; i < PORT_RANGES; i++) {
		/* A copy: the verifier does not track a number whose address was taken. */
		slot = i;
		port_range = bpf_map_lookup_elem(&port_ranges, &slot);
		if (port_range && port_range->last && port >= port_range->first && port <= port_range->last)
			return port_range;
	}
	return 0;
}

__inline __u32 mix(__u32 hash, __u32 word)
{
	hash = (hash ^ word) * 0x85ebca6b;
	return hash ^ hash >> 15;
}

/* Takes one of the questions that `source` may ask in this round. */
__inline int take_of(__u32 source, __u32 most)
{
	__u32 round = bpf_ktime_get_coarse_ns() >> ROUND_SHIFT, at = source % SOURCES;
	struct source *of = bpf_map_lookup_elem(&sources, &at);

	if (!of)
		return 0;
	if (of->round != round) {
		of->round = round;
		of->asks = 0;
	}
	if (of->asks >= most)
		return 0;
	of->asks += 1;
	return 1;
}

/*
 * Whether the packet may still come again: else it would be another connection's. TCP waits twice as long
 * each time, so after a packet that is lost the next one comes after three times as long as the others took.
 */
__inline int may_come_again(const struct seen *seen, __u16 now)
{
	return (__u16)(now - seen->last) < SEEN_STALE + 3 * (__u16)(seen->last - seen->since);
}

/*
 * The slot of the packet with this hash, or the one that it takes from another packet. A packet has the choice of a few,
 * so one that comes again keeps its own among many that also do, and among more that come once.
 */
__function struct seen *slot_of(__u32 hash, __u16 now)
{
	__u32 first = hash % (UNKNOWN_PACKETS / SLOTS) * SLOTS, check = mix(hash, 2), loses, most = 0, at, i;
	struct seen *seen, *to = 0;

	for (i = 0; i < SLOTS; i++) {
		at = first + i;
		seen = bpf_map_lookup_elem(&unknown_packets, &at);
		if (!seen)
			return 0;
		if (seen->hash == check)
			return seen;
		loses = (__u16)(now - seen->last) + 1;
		if (!may_come_again(seen, now))
			loses += LOSES_STALE;
		else if (seen->last == seen->since)
			loses += LOSES_ONCE;
		if (loses > most) {
			most = loses;
			to = seen;
		}
	}
	return to;
}

enum may {
	MAY_ASK,
	MAY_WAIT,
	MAY_NOT_WAIT, /* it has come for so long that whoever lives would have told of its flow */
};

/*
 * Whether the program may ask about the packet. No source gets all the questions, and a part
 * is reserved for packets that come again, as TCP's do: forged ones would have to do so, too.
 */
__function int may_ask(const struct packet *packet, const struct service *service)
{
	const struct key *key = &packet->key;
	__u16 now = bpf_ktime_get_coarse_ns() >> SEEN_SHIFT;
	__u32 network, address, hash, again;
	struct seen *seen;

	network = mix(mix(mix(key->family, key->src.word[0]), key->src.word[1]), key->src.word[2]);
	/* The first 24 bits of an IPv4 address, the first 64 of an IPv6 address: about one site, or one machine. */
	if (key->family == 4)
		network = mix(network, key->src.word[3] & htonl(0xffffff00));
	else
		network = mix(mix(key->family, key->src.word[0]), key->src.word[1]);
	address = mix(mix(mix(network, key->src.word[2]), key->src.word[3]), 1);
	hash = mix(mix(address, (__u32)key->sport << 16 | key->dport), key->dst.word[3]);
	seen = slot_of(hash, now);
	if (!seen)
		return MAY_WAIT;
	hash = mix(hash, 2);
	again = seen->hash == hash && may_come_again(seen, now);
	if (!again)
		seen->since = now;
	seen->hash = hash;
	seen->last = now;
	if ((__u16)(now - seen->since) >= SEEN_OVER && service->all_told)
		return MAY_NOT_WAIT;
	if (service->asks > (again ? 0 : ASKS_SPARE) && take_of(address, ASKS_OF_ADDRESS) &&
	    take_of(network, ASKS_OF_NETWORK))
		return MAY_ASK;
	return MAY_WAIT;
}

/* Whether user space got a report of the packet. */
__function int ask(const struct packet *packet, struct service *service, const struct tcp *tcp, __u32 kind)
{
	struct unknown_packet unknown = { .key = packet->key, .kind = kind };

	/* CPUs that race may ask a few more: the bound is against floods. */
	if (service->asks <= 0)
		return 0;
	service->asks -= 1;
	unknown.seq = ntohl(tcp->seq);
	unknown.ack = ntohl(tcp->ack);
	unknown.length = packet->end - packet->tcp - (tcp->offset >> 4) * 4;
	unknown.flags = tcp->flags;
	return !bpf_ringbuf_output(&events, &unknown, sizeof(unknown), 0);
}

/* A SYN to a port of a range begins a connection of another program: Baton never listens on ports of backend legs. */
__function void begin_foreign(const struct key *key)
{
	struct foreign begun = { .until_ns = bpf_ktime_get_coarse_ns() + FOREIGN_TRIAL_NS };
	struct key copy = *key;

	bpf_map_update_elem(&foreign, &copy, &begun, 0);
}

__inline int is_foreign(const struct key *key)
{
	struct foreign *known = bpf_map_lookup_elem(&foreign, key);

	return known && bpf_ktime_get_coarse_ns() < known->until_ns;
}

/* As is_foreign; in time user space asks conntrack whether the connection goes on. */
__function int passes_foreign(const struct packet *packet, struct service *service, const struct tcp *tcp)
{
	struct key key = packet->key;
	struct foreign *known = bpf_map_lookup_elem(&foreign, &key);
	__u64 now = bpf_ktime_get_coarse_ns();

	if (!known || now >= known->until_ns)
		return 0;
	if (known->until_ns - now < FOREIGN_RENEW_NS && now - known->told_ns >= FOREIGN_TELL_EVERY_NS) {
		known->told_ns = now;
		ask(packet, service, tcp, EVENT_FOREIGN);
	}
	return 1;
}

__function int unknown(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 at = packet->tcp, zero = 0, by_range = 0, is_new, then;
	struct meta *info = bpf_map_lookup_elem(&meta, &zero);
	struct service *service;
	struct port_range *port_range;
	struct tcp tcp;
	__u64 until, filled;
	int may;

	if (!info || likely(!info->services) || packet->first_fragment)
		return NEXT;
	service = service_at(packet, packet->key.dport);
	if (!service) {
		by_range = 1;
		service = service_at(packet, 0);
		if (!service)
			return NEXT;
	}
	port_range = port_range_of(ntohs(packet->key.dport));
	/* Another program with the address may use all other ports. */
	if (by_range) {
		barrier();
		if (!port_range)
			return NEXT;
	}
	if (at > TCP_AT_MAX || linear(skb, at + TCP_LEN) || bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return NEXT;
	is_new = (tcp.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	if (is_new && by_range)
		begin_foreign(&packet->key);
	if (is_new)
		return NEXT;
	if (tcp.flags & TCP_RST) {
		barrier();
		if (!port_range)
			return NEXT;
	}
	until = service->guard_until_ns;
	filled = service->filled_ns;
	then = service->then;
	if (known(skb, packet) || passes_foreign(packet, service, &tcp))
		return NEXT;
	/* Two instances that take each other for the owner would send a packet back and forth. */
	if (port_range && !comes_from(skb, port_range->mac)) {
		struct hop *hop = packet->key.family == 4 ? &port_range->v4 : &port_range->v6;

		if (hop->ifindex) {
			/* If it answers a packet of this host's kernel from the VIP, conntrack knows it, and the next one passes. */
			if (by_range && tcp.flags & TCP_SYN && service->asks > ASKS_SPARE)
				ask(packet, service, &tcp, EVENT_FOREIGN);
			count(FORWARDED_BY_PORT);
			return forward(skb, packet, hop);
		}
	}
	/* No socket of this host has asked for it: conntrack may know the one that did, otherwise the kernel answers. */
	if (by_range && tcp.flags & TCP_SYN) {
		begin_foreign(&packet->key);
		return NEXT;
	}
	if (tcp.flags & TCP_RST)
		return NEXT;
	/* A live instance may know at once what the others are still about to tell. */
	if (then == THEN_ASK) {
		may = may_ask(packet, service);
		if (may == MAY_ASK && ask(packet, service, &tcp, EVENT_UNKNOWN))
			return drop(ASKED);
		/* It comes again. An RST would end the flow of another live instance. */
		if (bpf_ktime_get_coarse_ns() < filled + FILLED_MAX_NS && may != MAY_NOT_WAIT)
			return drop(UNASKED);
	}
	if (bpf_ktime_get_coarse_ns() < until)
		return drop(GUARDED);
	return then ? reset(skb, packet) : NEXT;
}

/*
 * An ICMP error about a packet that `back` would answer: it goes where `back` would go, if that is another
 * instance, whose socket checks the quoted number. Without a TCP header `back` cannot match a listener.
 */
__function int error_onward(struct __sk_buff *skb, const struct packet *back)
{
	struct entry *entry = bpf_map_lookup_elem(&flows, &back->key);
	__u32 zero = 0;
	struct meta *info;
	int over = KNOWN_NOT;
	struct port_range *port_range;
	struct hop hop;

	if (entry) {
		if (entry->action != ACTION_FORWARD || comes_from(skb, entry->owner_mac))
			return NEXT;
		over = before_others(entry);
		hop.address = entry->dst;
		hop.ifindex = entry->ifindex;
	} else {
		info = bpf_map_lookup_elem(&meta, &zero);
		if (!info || likely(!info->services))
			return NEXT;
		if (!service_at(back, back->key.dport) && !service_at(back, 0))
			return NEXT;
		port_range = port_range_of(ntohs(back->key.dport));
		if (!port_range || comes_from(skb, port_range->mac) || is_foreign(&back->key))
			return NEXT;
		hop = back->key.family == 4 ? port_range->v4 : port_range->v6;
	}
	if (!hop.ifindex || known(skb, back) > over)
		return NEXT;
	count(FORWARDED);
	return forward(skb, back, &hop);
}
