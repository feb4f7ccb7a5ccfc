/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * For tests: counts TCP packets whose checksum was taken over the whole packet on arrival (CHECKSUM_COMPLETE),
 * and those of them with a wrong sum. The kernel itself reports that only once, and sums again. All packets pass.
 */
#include "abi.h"

enum {
	ETH_LEN = 14,
	/* Of the IP packet: longer ones are counted and not summed. */
	SUMMED_MAX = 512,
};

enum counter {
	COMPLETE,
	SUMMED,
	WRONG,
	OTHERS,
	COUNTERS,
};

struct bytes {
	__u32 word[SUMMED_MAX / 4];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counted SEC(".maps");

/* The number added to each sum, folded. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} shift SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bytes);
} scratch SEC(".maps");

__inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&counted, &what);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

/* Folded to 16 bits, of which all ones are a zero. */
__inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff ? 0 : sum;
}

/* Without options or extension headers before it. */
__inline int is_tcp(struct __sk_buff *skb)
{
	__u8 protocol = 0;

	if (skb->protocol == htons(0x0800))
		bpf_skb_load_bytes(skb, ETH_LEN + 9, &protocol, 1);
	else if (skb->protocol == htons(0x86dd))
		bpf_skb_load_bytes(skb, ETH_LEN + 6, &protocol, 1);
	return protocol == 6;
}

SEC("classifier")
int sums(struct __sk_buff *skb)
{
	/* Adds nothing. Fails if there is no such sum. */
	__s64 taken = bpf_csum_update(skb, 0);
	__u32 zero = 0, length = skb->len - ETH_LEN;
	struct bytes *bytes;
	__u32 *added;

	if (!is_tcp(skb))
		return NEXT;
	if (taken < 0) {
		count(OTHERS);
		return NEXT;
	}
	count(COMPLETE);
	bytes = bpf_map_lookup_elem(&scratch, &zero);
	added = bpf_map_lookup_elem(&shift, &zero);
	if (!bytes || !added || length > SUMMED_MAX)
		return NEXT;
	one_register(length);
	if (length < 20)
		return NEXT;
	__builtin_memset(bytes, 0, sizeof(*bytes));
	if (bpf_skb_load_bytes(skb, ETH_LEN, bytes, length))
		return NEXT;
	count(SUMMED);
	if (folded((__u32)folded(taken) + *added) != folded(bpf_csum_diff(0, 0, bytes->word, sizeof(*bytes), 0)))
		count(WRONG);
	return NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
