/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The parts of the kernel's BPF interface (include/uapi/linux/bpf.h) that the program uses. With these lines of
 * its own the program needs no header of the machine that builds it, so that the object is the same everywhere.
 */
#pragma once

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;

#define SEC(name) __attribute__((section(name), used))
#define __inline static inline __attribute__((always_inline))
#define __function static __attribute__((noinline))
/* The verifier checks such a function once by itself, whatever its callers. */
#define __separate __attribute__((noinline))
#define unlikely(x) __builtin_expect(!!(x), 0)
#define likely(x) __builtin_expect(!!(x), 1)

/* A map's description for the loader: BTF that is never run. */
#define __uint(name, value) int(*name)[value]
#define __type(name, type) type *name

/* The compiler must not move or merge code across this. */
#define barrier() __asm__ volatile("" ::: "memory")

/*
 * The compiler must compare and use the one register that holds this. It would else compare a copy, and older verifiers do not
 * know of the other, or of one on the stack, that it is the same.
 */
#define one_register(x) __asm__ volatile("" : "+r"(x))

#define ntohs(x) __builtin_bswap16(x)
#define htons(x) __builtin_bswap16(x)
#define ntohl(x) __builtin_bswap32(x)
#define htonl(x) __builtin_bswap32(x)

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1 << 10,
};

enum {
	/* Verdicts: the next program or the kernel; drop; where the redirect said. */
	NEXT = -1,
	DROP = 2,
};

enum {
	PACKET_HOST = 0,
	LOOPBACK = 1, /* its interface index in every network namespace */
	BPF_F_INGRESS = 1,
	BPF_F_PSEUDO_HDR = 1 << 4,
	BPF_CSUM_LEVEL_RESET = 3,
	BPF_TCP_TIME_WAIT = 6,
	BPF_TCP_LISTEN = 10,
	AF_INET = 2,
	AF_INET6 = 10,
};
#define BPF_F_CURRENT_NETNS (-1L)

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	__u64 sk;
	__u32 gso_size;
};

struct bpf_sock {
	__u32 bound_dev_if;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 mark;
	__u32 priority;
	__u32 src_ip4;
	__u32 src_ip6[4];
	__u32 src_port;
	__u16 dst_port;
	__u16 : 16;
	__u32 dst_ip4;
	__u32 dst_ip6[4];
	__u32 state;
	__s32 rx_queue_mapping;
};

struct bpf_tcp_sock {
	__u32 snd_cwnd;
	__u32 srtt_us;
	__u32 rtt_min;
	__u32 snd_ssthresh;
	__u32 rcv_nxt;
};

struct bpf_sock_tuple {
	union {
		struct {
			__u32 saddr;
			__u32 daddr;
			__u16 sport;
			__u16 dport;
		} ipv4;
		struct {
			__u32 saddr[4];
			__u32 daddr[4];
			__u16 sport;
			__u16 dport;
		} ipv6;
	};
};

struct bpf_redir_neigh {
	__u32 nh_family;
	union {
		__u32 ipv4_nh;
		__u32 ipv6_nh[4];
	};
};

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_skb_store_bytes)(struct __sk_buff *, __u32 offset, const void *from, __u32 len, __u64) = (void *)9;
static long (*bpf_l4_csum_replace)(struct __sk_buff *, __u32 offset, __u64 from, __u64 to, __u64 flags) = (void *)11;
static long (*bpf_clone_redirect)(struct __sk_buff *, __u32 ifindex, __u64 flags) = (void *)13;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*bpf_skb_load_bytes)(const void *, __u32 offset, void *to, __u32 len) = (void *)26;
static __s64 (*bpf_csum_diff)(__u32 *from, __u32 from_size, __u32 *to, __u32 to_size, __u32 seed) = (void *)28;
static long (*bpf_skb_change_tail)(struct __sk_buff *, __u32 len, __u64 flags) = (void *)38;
static long (*bpf_skb_pull_data)(struct __sk_buff *, __u32 len) = (void *)39;
static __s64 (*bpf_csum_update)(struct __sk_buff *, __u32 csum) = (void *)40;
static long (*bpf_sk_release)(void *sk) = (void *)86;
static struct bpf_tcp_sock *(*bpf_tcp_sock)(struct bpf_sock *sk) = (void *)96;
static struct bpf_sock *(*bpf_skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *, __u32 size, __u64 netns,
					      __u64 flags) = (void *)99;
static long (*bpf_tcp_check_syncookie)(void *sk, void *ip, __u32 ip_len, void *tcp, __u32 tcp_len) = (void *)100;
static long (*bpf_ringbuf_output)(void *ringbuf, void *data, __u64 size, __u64 flags) = (void *)130;
static long (*bpf_csum_level)(struct __sk_buff *, __u64 level) = (void *)135;
static void *(*bpf_skc_to_tcp_sock)(void *sk) = (void *)137;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static __u64 (*bpf_ktime_get_coarse_ns)(void) = (void *)160;
static long (*bpf_redirect_neigh)(__u32 ifindex, struct bpf_redir_neigh *, int size, __u64 flags) = (void *)152;
static long (*bpf_check_mtu)(void *ctx, __u32 ifindex, __u32 *mtu_len, __s32 len_diff, __u64 flags) = (void *)163;
