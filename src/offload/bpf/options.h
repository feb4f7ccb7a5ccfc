/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP options: timestamps (RFC 7323) and SACK blocks (RFC 2018) hold numbers of one
 * leg. Nearly every segment has only timestamps, in the layout of the RFC's appendix
 * A, and the program rewrites those in place. It walks all other options on a copy.
 */
#pragma once
#include "packet.h"

enum {
	OPTION_END = 0,
	OPTION_NOP = 1,
	OPTION_SACK = 5,
	OPTION_TIMESTAMPS = 8,
	OPTIONS_MAX = 40,
	TIMESTAMPS_LEN = 10,
	SACK_BLOCKS_MAX = 4,
	/* NOP, NOP, timestamps, its length. */
	TIMESTAMPS_ALONE = 0x0101080a,
};

struct walk {
	__u8 bytes[OPTIONS_MAX];
	__u32 at, length;
	__u32 ack, tsval, tsecr;
	__u32 bad;
};

/* The copy is on the stack, where the verifier demands aligned accesses: so it consists of bytes. */
__inline __u32 word_at(const struct walk *walk, __u32 at)
{
	const __u8 *b = walk->bytes + at;

	return (__u32)b[0] << 24 | (__u32)b[1] << 16 | (__u32)b[2] << 8 | b[3];
}

__inline void put_word(struct walk *walk, __u32 at, __u32 word)
{
	__u8 *b = walk->bytes + at;

	b[0] = word >> 24;
	b[1] = word >> 16;
	b[2] = word >> 8;
	b[3] = word;
}

/* An echo of zero is no echo: a segment without an acknowledgement has nothing to echo. */
__inline __u32 echo(__u32 tsecr, __u32 delta)
{
	return tsecr ? tsecr + delta : 0;
}

/* One option of the copy; 1 ends the walk. Separate, so that the verifier checks it once for all options. */
__separate int rewrite_option(struct walk *walk)
{
	__u32 at, length, block;

	if (!walk)
		return 1;
	at = walk->at;
	if (at >= walk->length || at >= OPTIONS_MAX)
		return 1;
	if (walk->bytes[at] == OPTION_END)
		return 1;
	if (walk->bytes[at] == OPTION_NOP) {
		walk->at = at + 1;
		return 0;
	}
	/* A kernel stops reading here too, so the rest means nothing to the receiver. */
	if (at + 2 > walk->length || at + 2 > OPTIONS_MAX)
		goto bad;
	length = walk->bytes[at + 1];
	if (length < 2 || at + length > walk->length)
		goto bad;
	walk->at = at + length;
	if (walk->bytes[at] == OPTION_TIMESTAMPS && length == TIMESTAMPS_LEN && at <= OPTIONS_MAX - TIMESTAMPS_LEN) {
		put_word(walk, at + 2, word_at(walk, at + 2) + walk->tsval);
		put_word(walk, at + 6, echo(word_at(walk, at + 6), walk->tsecr));
	} else if (walk->bytes[at] == OPTION_SACK) {
		for (block = 0; block < SACK_BLOCKS_MAX; block++) {
			__u32 edge = at + 2 + block * 8;

			one_register(edge);
			if (block * 8 + 10 > length || edge > OPTIONS_MAX - 8)
				break;
			put_word(walk, edge, word_at(walk, edge) + walk->ack);
			put_word(walk, edge + 4, word_at(walk, edge + 4) + walk->ack);
		}
	}
	return 0;
bad:
	walk->bad = 1;
	return 1;
}

/*
 * Rewrites `length` bytes of options at `at`; returns the change of the
 * segment's sum, or a negative error. Packet pointers are void afterwards.
 */
__function __s64 rewrite_options(struct __sk_buff *skb, __u32 at, __u32 length, const struct entry *entry)
{
	struct walk walk = {};
	__u8 before[OPTIONS_MAX] = {};
	__u32 i;
	__s64 sum;

	length &= 0x3c;
	one_register(length);
	if (length > OPTIONS_MAX)
		return -1;
	/* Verifiers before Linux 6.8 learn no least value from a comparison with zero. */
	one_register(length);
	if (length < 4)
		return -1;
	if (bpf_skb_load_bytes(skb, at, before, length))
		return -1;
	__builtin_memcpy(walk.bytes, before, OPTIONS_MAX);
	walk.length = length;
	walk.ack = entry->ack;
	walk.tsval = entry->tsval;
	walk.tsecr = entry->tsecr;
	/* Not by bpf_loop, which kernels before 5.17 lack. */
	for (i = 0; i < OPTIONS_MAX; i++) {
		if (rewrite_option(&walk))
			break;
	}
	if (walk.bad)
		count(BAD_OPTIONS);
	sum = bpf_csum_diff((__u32 *)before, OPTIONS_MAX, (__u32 *)walk.bytes, OPTIONS_MAX, 0);
	if (sum < 0 || bpf_skb_store_bytes(skb, at, walk.bytes, length, 0))
		return -1;
	return sum;
}
