/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Programs that see no packet: user space runs them with a list in place of the packet
 * (BPF_PROG_TEST_RUN). One call answers for many sockets or changes many entries.
 */
#include "entry.h"

char _license[] SEC("license") = "Dual BSD/GPL";

enum {
	/* An Ethernet header, without which no list is taken. */
	LIST = 14,
	/* As many as fit into a page beside the kernel's own data there. */
	LEGS_MAX = 28,
	CHANGES_MAX = 64,
};

/* The request for one socket: its key is that of the packets that it receives. probe.rs has the same. */
struct leg {
	struct key key;

	__u32 state; /* 0: no such socket */
	__u32 snd_una, snd_nxt, write_seq, rcv_nxt, copied_seq;
	__u32 snd_wnd, cwnd, in_flight, mss;
	__u16 peer_mss, own_mss;
	__u32 path_mtu;
	__u32 ts_own, ts_recent, ts_per_second; /* 0 a second: no timestamps */
	__u32 ifindex, rx_ifindex;
	__u8 peer_scale, own_scale, sack, ecn;
	__u8 out_of_order, urgent, zero[2];
};

_Static_assert(sizeof(struct leg) == 40 + 76, "probe.rs: LEG_SIZE");

/*
 * The kernel's structures, by the names of their fields; the loader finds the
 * offsets in the running kernel (include/linux/tcp.h, include/net/sock.h).
 */
#define KERNEL __attribute__((preserve_access_index))

struct sock_common {
	volatile unsigned char skc_state;
} KERNEL;

struct net_device {
	int ifindex;
} KERNEL;

struct dst_entry {
	struct net_device *dev;
} KERNEL;

struct sock {
	struct sock_common __sk_common;
	struct dst_entry *sk_dst_cache;
	int sk_rx_dst_ifindex;
} KERNEL;

struct ipv6_pinfo {
	int mcast_oif;
} KERNEL;

struct inet_sock {
	struct sock sk;
	struct ipv6_pinfo *pinet6;
	int mc_index;
} KERNEL;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	__u32 icsk_pmtu_cookie;
} KERNEL;

struct tcp_options_received {
	__u32 ts_recent;
	__u16 tstamp_ok : 1, sack_ok : 3, snd_wscale : 4, rcv_wscale : 4;
	__u16 mss_clamp;
} KERNEL;

struct rb_node;

struct rb_root {
	struct rb_node *rb_node;
} KERNEL;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	struct tcp_options_received rx_opt;
	struct rb_root out_of_order_queue;
	__u32 snd_una, snd_nxt, write_seq, rcv_nxt, copied_seq;
	__u32 snd_wnd, snd_cwnd, packets_out, mss_cache, tsoffset;
	__u16 advmss, urg_data;
	__u8 ecn_flags;
	__u8 tcp_usec_ts : 1;
} KERNEL;

enum {
	INFO_BYTE_OFFSET = 0,
	INFO_BYTE_SIZE = 1,
	INFO_EXISTS = 2,
	INFO_SHIFT_LEFT = 4,
	INFO_SHIFT_RIGHT = 5,
};

/* A bit field: the loader fills in its place, its width and its shift. */
#define BITS(holder, field)                                                                                       \
	({                                                                                                        \
		const void *at = (const void *)(holder) +                                                         \
				 __builtin_preserve_field_info((holder)->field, INFO_BYTE_OFFSET);                \
		__u64 bits = 0;                                                                                   \
		__asm__ volatile("" : "+r"(at));                                                                  \
		switch (__builtin_preserve_field_info((holder)->field, INFO_BYTE_SIZE)) {                         \
		case 1: bits = *(const __u8 *)at; break;                                                          \
		case 2: bits = *(const __u16 *)at; break;                                                         \
		case 4: bits = *(const __u32 *)at; break;                                                         \
		case 8: bits = *(const __u64 *)at; break;                                                         \
		}                                                                                                 \
		bits <<= __builtin_preserve_field_info((holder)->field, INFO_SHIFT_LEFT);                         \
		bits >>= __builtin_preserve_field_info((holder)->field, INFO_SHIFT_RIGHT);                        \
		bits;                                                                                             \
	})

enum {
	NS_PER_MS = 1000000,
	NS_PER_US = 1000,
	ECN_CLASSIC = 1,   /* TCP_ECN_OK, TCP_ECN_MODE_RFC3168 */
	ECN_ACCURATE = 16, /* TCP_ECN_MODE_ACCECN */
};

__inline void describe(struct leg *leg, struct tcp_sock *tp)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u64 now = bpf_ktime_get_ns();

	leg->state = sk->__sk_common.skc_state;
	leg->snd_una = tp->snd_una;
	leg->snd_nxt = tp->snd_nxt;
	leg->write_seq = tp->write_seq;
	leg->rcv_nxt = tp->rcv_nxt;
	leg->copied_seq = tp->copied_seq;
	leg->snd_wnd = tp->snd_wnd;
	leg->cwnd = tp->snd_cwnd;
	leg->in_flight = tp->packets_out;
	leg->mss = tp->mss_cache;
	leg->own_mss = tp->advmss;
	leg->peer_mss = tp->rx_opt.mss_clamp;
	leg->path_mtu = tp->inet_conn.icsk_pmtu_cookie;
	leg->ifindex = sk->sk_dst_cache->dev->ifindex;
	leg->rx_ifindex = sk->sk_rx_dst_ifindex;
	/*
	 * An accepted socket keeps it only from its second packet on, and may be silent from its first. Where its handshake
	 * came from stands in the place for what multicast leaves by, until somebody sets that (tcp_v4_syn_recv_sock).
	 */
	if (!leg->rx_ifindex)
		leg->rx_ifindex = leg->key.family == 4 ? tp->inet_conn.icsk_inet.mc_index
						       : tp->inet_conn.icsk_inet.pinet6->mcast_oif;
	leg->peer_scale = BITS(tp, rx_opt.snd_wscale);
	leg->own_scale = BITS(tp, rx_opt.rcv_wscale);
	leg->sack = BITS(tp, rx_opt.sack_ok) != 0;
	leg->ecn = tp->ecn_flags & (ECN_CLASSIC | ECN_ACCURATE);
	leg->out_of_order = tp->out_of_order_queue.rb_node != 0;
	leg->urgent = tp->urg_data != 0;
	if (!BITS(tp, rx_opt.tstamp_ok))
		return;
	leg->ts_recent = tp->rx_opt.ts_recent;
	/* Microseconds depend on a route's setting (features tcp_usec_ts), from Linux 6.7 on. */
	if (__builtin_preserve_field_info(tp->tcp_usec_ts, INFO_EXISTS) && BITS(tp, tcp_usec_ts)) {
		leg->ts_per_second = 1000000;
		leg->ts_own = now / NS_PER_US + tp->tsoffset;
	} else {
		leg->ts_per_second = 1000;
		leg->ts_own = now / NS_PER_MS + tp->tsoffset;
	}
}

/*
 * The verifier looks for the name of each structure that a pointer leads to among all of the kernel's: of this function once, of one
 * that the loop below had inside it for each leg, which took half a second.
 */
__separate int look_up(struct __sk_buff *skb, struct leg *leg)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *found;
	struct tcp_sock *tp;

	if (!leg)
		return 0;
	if (leg->key.family == 4) {
		tuple.ipv4.saddr = leg->key.src.word[3];
		tuple.ipv4.daddr = leg->key.dst.word[3];
		tuple.ipv4.sport = leg->key.sport;
		tuple.ipv4.dport = leg->key.dport;
		found = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &leg->key.src, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &leg->key.dst, 16);
		tuple.ipv6.sport = leg->key.sport;
		tuple.ipv6.dport = leg->key.dport;
		found = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!found)
		return 0;
	/* A look-up returns a listener for a connection that does not exist. */
	if (found->state != BPF_TCP_LISTEN) {
		tp = bpf_skc_to_tcp_sock(found);
		if (tp)
			describe(leg, tp);
	}
	bpf_sk_release(found);
	return 0;
}

/* Fills in each leg of the list; returns their number. */
SEC("classifier/probe")
int probe(struct __sk_buff *skb)
{
	struct leg leg;
	__u32 i, at;

	for (i = 0; i < LEGS_MAX; i++) {
		at = LIST + i * sizeof(leg);
		__builtin_memset(&leg, 0, sizeof(leg));
		if (bpf_skb_load_bytes(skb, at, &leg.key, sizeof(leg.key)))
			break;
		look_up(skb, &leg);
		if (bpf_skb_store_bytes(skb, at, &leg, sizeof(leg), 0))
			break;
	}
	return i;
}

enum operation {
	CHANGE_COMMIT = 1,
	CHANGE_INTERFACE = 2,
	CHANGE_LOCAL = 3,
	CHANGE_RESET = 4,
	CHANGE_PASS = 5,
	CHANGE_HOLD = 6,
	CHANGE_OWN = 7,
	CHANGE_SENT = 8,
	CHANGE_FIN = 9,
	CHANGE_HEAR = 10,
	CHANGE_TAKE = 11,
	CHANGE_TAKE_NEAR = 12,
};

struct change {
	struct key key;
	__u64 flow_id;
	__u32 operation;
	union {
		__u32 ifindex;
		__u32 position;
	};
};

_Static_assert(sizeof(struct change) == 56, "probe.rs: CHANGE_SIZE");

/*
 * Changes an entry in place; returns whether there was one. A new value from user
 * space would lose the counts since it read the old one. Another flow, whose
 * client has reused the port, may have an entry at the key: that entry stays.
 */
__separate int change_one(const struct change *change)
{
	struct entry *entry;
	struct key key;

	if (!change)
		return 0;
	/* Linux 6.1 takes no key from the caller's memory. */
	key = change->key;
	entry = bpf_map_lookup_elem(&flows, &key);
	if (!entry || (entry->flow_id != change->flow_id && change->operation != CHANGE_HEAR))
		return 0;
	switch (change->operation) {
	case CHANGE_COMMIT:
		entry->flags |= FLAG_COMMITTED;
		break;
	case CHANGE_INTERFACE:
		entry->ifindex = change->ifindex;
		entry->flags &= ~FLAG_LOCAL;
		break;
	case CHANGE_LOCAL:
		entry->flags |= FLAG_LOCAL;
		break;
	case CHANGE_RESET:
		/* A new connection has its ends already. */
		if (!(entry->marks & MARK_REUSED))
			entry->action = ACTION_RESET;
		break;
	case CHANGE_PASS:
		entry->action = ACTION_PASS;
		break;
	case CHANGE_HOLD:
		entry->flags |= FLAG_STANDBY;
		break;
	case CHANGE_OWN:
		entry->flags &= ~FLAG_STANDBY;
		break;
	case CHANGE_FIN:
	case CHANGE_SENT:
		if ((__s32)(change->position - (__u32)entry->sent) > 0) {
			entry->sent += (__s32)(change->position - (__u32)entry->sent);
			entry->fin_ns = 0;
		}
		if (change->operation == CHANGE_FIN && !entry->fin_ns && (__u32)entry->sent == change->position)
			entry->fin_ns = bpf_ktime_get_ns();
		break;
	case CHANGE_HEAR:
		entry->doubted = 0;
		break;
	case CHANGE_TAKE:
		entry->doubted = DOUBT_TAKE;
		break;
	case CHANGE_TAKE_NEAR:
		entry->doubted = DOUBT_TAKE_NEAR;
		break;
	}
	return 1;
}

/* Makes each change of the list; returns how many entries there were. */
SEC("classifier/amend")
int amend(struct __sk_buff *skb)
{
	struct change change;
	__u32 i, found = 0;

	for (i = 0; i < CHANGES_MAX; i++) {
		if (bpf_skb_load_bytes(skb, LIST + i * sizeof(change), &change, sizeof(change)))
			break;
		found += change_one(&change);
	}
	return found;
}
