/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Port sharing: the kernel runs this program when it looks for the listening socket of a packet (BPF_PROG_TYPE_SK_LOOKUP,
 * Documentation/bpf/prog_sk_lookup.rst). A place of Baton's gets Baton's socket, whoever else listens on that port. All other
 * packets take the way that they would take without the program.
 *
 * Another meaning of a map needs another LAYOUT in src/proxy/sharing/pins.rs, and so does another program.
 */
#include "abi.h"

char _license[] SEC("license") = "Dual BSD/GPL";

enum {
	SK_DROP = 0,
	SK_PASS = 1,
	SK_LOOKUP_REPLACE = 1,
	TCP = 6,
	PLACES_MAX = 1024,
	BPF_MAP_TYPE_SOCKHASH = 18,
};

/*
 * The head of the kernel's structure. Volatile: the verifier takes no read at an offset that was computed.
 * The addresses of the other family read as 0.
 */
struct bpf_sk_lookup {
	__u64 sk;
	__u32 family;
	__u32 protocol;
	__u32 remote_ip4;
	__u32 remote_ip6[4];
	__u16 remote_port;
	__u16 zero;
	volatile __u32 local_ip4;
	volatile __u32 local_ip6[4];
	__u32 local_port; /* in host byte order */
};

static long (*bpf_sk_assign)(struct bpf_sk_lookup *, struct bpf_sock *, __u64 flags) = (void *)124;

/* An address that clients connect to; IPv4 as ::ffff:a.b.c.d. src/proxy/sharing/pins.rs has the same. */
struct place {
	__u32 address[4]; /* in network byte order */
	__u32 port; /* in host byte order */
};

/* Places that are shared, and the instance that each belongs to. They stay when the instance dies. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PLACES_MAX);
	__type(key, struct place);
	__type(value, __u64);
} places SEC(".maps");

/* One socket of each place's SO_REUSEPORT group. The kernel takes a socket out when it is closed. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, PLACES_MAX);
	__type(key, struct place);
	__type(value, __u64);
} listeners SEC(".maps");

SEC("sk_lookup")
int sharing(struct bpf_sk_lookup *ctx)
{
	struct place place = {};
	struct bpf_sock *listener;
	long refused;
	__u32 ip4;

	if (ctx->protocol != TCP)
		return SK_PASS;
	ip4 = ctx->local_ip4;
	place.address[0] = ctx->local_ip6[0];
	place.address[1] = ctx->local_ip6[1];
	place.address[2] = ctx->local_ip6[2];
	place.address[3] = ctx->local_ip6[3];
	if (ctx->family == AF_INET) {
		place.address[2] = htonl(0xffff);
		place.address[3] = ip4;
	}
	place.port = ctx->local_port;
	if (!bpf_map_lookup_elem(&places, &place))
		return SK_PASS;
	/* From here on nobody else may answer: without a socket the kernel answers with RST (net/ipv4/tcp_ipv4.c, tcp_v4_rcv). */
	listener = bpf_map_lookup_elem(&listeners, &place);
	if (!listener)
		return SK_DROP;
	/* The kernel chooses among the group itself (net/ipv4/inet_hashtables.c, inet_lookup_run_sk_lookup). */
	refused = bpf_sk_assign(ctx, listener, SK_LOOKUP_REPLACE);
	bpf_sk_release(listener);
	return refused ? SK_DROP : SK_PASS;
}
