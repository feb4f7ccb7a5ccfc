/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A packet of an offloaded flow: rewritten for the other leg and sent on. */
#pragma once
#include "options.h"
#include "reset.h"

enum {
	ECN_MASK = 3,
	ECN_CONGESTED = 3,
	WINDOW_MAX = 65535,
	/* Where the TCP header of a packet may begin: behind 60 bytes of IPv4, or some extension headers of IPv6. */
	TCP_AT_MAX = 320,
	/* Not a verdict: the packet does not fit the outgoing interface. */
	TOO_LARGE = 100,
	/* Bytes that a segment at its place may acknowledge at once and still count as an ordinary one. */
	ORDINARY = 1 << 17,
	/* Bytes after which user space reports a flow's progress to the other instances again. tell.rs: TELL_AGAIN */
	TOLD_EVERY = 1 << 30,
};

/* The fields that decide, in host order. */
struct segment {
	__u32 seq, ack;
	__u32 payload;
	__u32 options; /* bytes */
	__u8 flags;
	__u8 down; /* from the backend */
	__u8 whole; /* of RST: its sum is right */
};

__inline void partner_key(struct key *key, const struct entry *entry, __u8 family)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->src = entry->dst;
	key->dst = entry->src;
	key->sport = entry->dport;
	key->dport = entry->sport;
	key->family = family;
}

/* The entry of the other direction, if its flow is offloaded. */
__function struct entry *partner(const struct entry *entry, __u8 family)
{
	struct entry *other;
	struct key key;

	partner_key(&key, entry, family);
	other = bpf_map_lookup_elem(&flows, &key);
	return other && other->action != ACTION_WITNESS ? other : 0;
}

/* Makes the first `length` bytes readable and writable. */
__inline int linear(struct __sk_buff *skb, __u32 length)
{
	if (likely((void *)(long)skb->data + length <= (void *)(long)skb->data_end))
		return 0;
	return skb->len < length ? -1 : bpf_skb_pull_data(skb, length);
}

/* Whether the sender of `other` has acknowledged the FIN of `entry`'s sender. */
__inline int finished(const struct entry *entry, const struct entry *other)
{
	return entry->fin_ns && (__s32)((__u32)other->acked + other->ack - (__u32)entry->sent) >= 0;
}

/* From now on the client's packets pass to the kernel. */
__inline void pass_anew(struct entry *entry, const struct key *key)
{
	entry->marks |= MARK_REUSED;
	entry->action = ACTION_PASS;
	mark(entry);
	tell(entry, key, EVENT_REUSED);
}

/*
 * Whether a SYN may begin a new connection: that of the entry is over, though the entry stays until user
 * space has read it. From then on the client's packets pass to the kernel, and its backend gets RST.
 */
__function int begins_anew(struct entry *entry, const struct key *key)
{
	struct entry *other = partner(entry, key->family);

	if (!entry->rst_ns && !(other && (other->rst_ns || (finished(entry, other) && finished(other, entry)))))
		return 0;
	if (other)
		other->action = ACTION_RESET;
	pass_anew(entry, key);
	return 1;
}

/*
 * Whether the receiver must accept an RST with this number: its last acknowledgement, or the next number if
 * everything has arrived (RFC 5961 section 3.2). It answers any other with an ACK, and the flow goes on.
 */
__function int ends_flow(const struct entry *entry, __u32 seq, __u8 family)
{
	struct entry *other;

	if (seq == (__u32)entry->sent)
		return 1;
	other = partner(entry, family);
	return other && seq == (__u32)other->acked + other->ack;
}

/*
 * Whether the receiver of a segment without SYN and RST would accept its numbers (RFC 9293 section
 * 3.10.7.4, RFC 5961 section 5.2): any other segment is forged, or damaged, and must decide nothing.
 * Nearly every segment is the next one, and acknowledges little more than the one before. An attacker
 * would need 2^32 attempts to guess such numbers, and the check needs no second look-up. Any other
 * segment must be within the receiver's window, ahead of the received bytes or behind them, and must not
 * acknowledge more than the window that its sender has given; nor more than the other side has sent,
 * unless that side's packets pass another instance: then its sender has already acknowledged more.
 */
__function int fits_in(const struct entry *entry, const struct segment *segment, __u8 family)
{
	__u32 length = segment->payload + !!(segment->flags & TCP_FIN);
	__s32 seq = segment->seq - (__u32)entry->sent, ack = segment->ack - (__u32)entry->acked;
	__s32 own = 1 << (entry->own_window & 31), far = 1 << (entry->far_window & 31), ahead, behind;
	struct entry *other;

	if (!(segment->flags & TCP_ACK))
		return 0;
	if (likely(!seq && ack >= 0 && ack <= ORDINARY))
		return 1;
	if (seq < -far || seq > far || (__s32)(seq + length) > far || ack < -own || ack > own)
		return 0;
	other = partner(entry, family);
	/* Positions from another instance that no packet has confirmed yet may be old on either side. */
	if (!other || !entry->packets || !other->packets)
		return 1;
	/* In the numbers of the receiver's leg, and of the sender's. */
	ahead = (__u32)entry->acked + entry->ack - (__u32)other->sent;
	/* The numbers may be half of the number space apart, so no sum of theirs may overflow. */
	if (ahead <= 0 && ahead > -ack)
		return 0;
	behind = (__u32)entry->sent - ((__u32)other->acked + other->ack);
	return behind < 0 || behind > far || (__s32)(seq + length) <= far - behind;
}

/*
 * Whether the sum of a TCP header of so many bytes, with no payload behind it, is right, or is that of the addresses alone: what a
 * socket of this host sends, a card or nobody completes (CHECKSUM_PARTIAL). The kernel drops any other packet, and so must nobody act
 * on it: a bit that flips on the way makes RST of a packet whose number is right.
 */
__function int is_whole(struct __sk_buff *skb, const struct packet *packet, __u32 length)
{
	__u32 addresses[8], header[TCP_HEADER_MAX / 4] = {}, pseudo = htons(PROTO_TCP) + htons(length), at = packet->tcp;
	__u16 check;

	if (length < TCP_LEN || length > TCP_HEADER_MAX || bpf_skb_load_bytes(skb, at, header, length))
		return 0;
	__builtin_memcpy(addresses, &packet->key.src, sizeof(packet->key.src));
	__builtin_memcpy(addresses + 4, &packet->key.dst, sizeof(packet->key.dst));
	/* A mapped IPv4 address has 16 ones more, which are a zero here. */
	pseudo = bpf_csum_diff(0, 0, addresses, sizeof(addresses), pseudo);
	check = header[4];
	return check == fold16(pseudo) || fold16(bpf_csum_diff(0, 0, header, sizeof(header), pseudo)) == 0xffff;
}

/* Reports a segment outside the windows to user space, once until user space asks for the next. */
__function void doubt(struct entry *entry, const struct segment *segment, const struct key *key)
{
	struct unknown_packet unknown = { .key = *key, .kind = EVENT_DOUBT };

	count(UNFIT);
	if (entry->doubted)
		return;
	unknown.seq = segment->seq;
	unknown.ack = segment->ack;
	unknown.length = segment->payload;
	unknown.flags = segment->flags;
	if (!bpf_ringbuf_output(&events, &unknown, sizeof(unknown), 0))
		entry->doubted = DOUBT_TOLD;
}

/* Whether the number is within this distance of the position, before it or after it. */
__inline int is_near(__u32 number, __u32 position, __u32 window)
{
	return number - position + window <= 2 * window;
}

/*
 * Takes the numbers of a segment as positions, if the old ones are known to be behind and the flow may have progressed
 * so far. Positions never move back. Where the other direction's own packets are known, the two directions must match.
 */
__function int catches_up(struct entry *entry, const struct segment *segment, __u8 family)
{
	struct entry *other;
	__s32 seq = segment->seq - (__u32)entry->sent, ack = segment->ack - (__u32)entry->acked;
	__s32 own = 1 << (entry->own_window & 31), far = 1 << (entry->far_window & 31);
	__s32 most = entry->doubted == DOUBT_TAKE ? TOLD_EVERY : 0;

	/* Windows are 2^30 at most. */
	if (!(segment->flags & TCP_ACK) || seq < -far || ack < -own)
		return 0;
	if ((__u32)(seq + far) > (__u32)most + 2 * (__u32)far || (__u32)(ack + own) > (__u32)most + 2 * (__u32)own)
		return 0;
	other = entry->doubted == DOUBT_TAKE ? partner(entry, family) : 0;
	if (other && other->packets &&
	    !(is_near(segment->seq, (__u32)other->acked + other->ack, far) &&
	      is_near(segment->ack + entry->ack, (__u32)other->sent, own)))
		return 0;
	entry->doubted = 0;
	if (seq > 0)
		entry->sent += seq;
	if (ack > 0)
		entry->acked += ack;
	return 1;
}

/* Whether the segment counts: an RST with exactly the right number and sum, or a segment within the windows. */
__function int counts(struct entry *entry, const struct segment *segment, const struct key *key)
{
	if (unlikely(segment->flags & TCP_SYN))
		return 0;
	if (unlikely(segment->flags & TCP_RST)) {
		if (segment->whole && ends_flow(entry, segment->seq, key->family))
			return 1;
		doubt(entry, segment, key);
		return 0;
	}
	if (likely(fits_in(entry, segment, key->family)))
		return 1;
	if (unlikely(entry->doubted >= DOUBT_TAKE) && catches_up(entry, segment, key->family))
		return 1;
	doubt(entry, segment, key);
	return 0;
}

/* The other side must report when it has acknowledged the FIN. */
__function void see_fin(const struct entry *entry, const struct key *key)
{
	struct entry *other = partner(entry, key->family);

	if (other)
		other->far_fin = 1;
}

__function void see_finished(struct entry *entry, const struct key *key)
{
	struct entry *other = partner(entry, key->family);

	if (!other || !finished(other, entry))
		return;
	entry->far_fin = 0;
	tell(entry, key, EVENT_FINISHED);
}

/* Records a segment that counts. Two CPUs that race here may lose a packet of the count, and nothing else for long. */
__inline void note(struct __sk_buff *skb, struct entry *entry, const struct segment *segment,
			 const struct key *key)
{
	__u32 slot = entry->backend, behind = segment->seq + segment->payload + !!(segment->flags & TCP_FIN);
	__u64 now = bpf_ktime_get_coarse_ns();
	struct evidence *evidence;
	int demands = 0, speaks = 0, takes = 0;
	__u32 asked;
	__s32 ahead;

	entry->packets += skb->gso_segs ?: 1;
	entry->last_ns = now;
	if (unlikely(segment->flags & TCP_RST)) {
		if (!entry->rst_ns) {
			entry->rst_ns = bpf_ktime_get_ns();
			tell(entry, key, EVENT_RST);
		}
	} else {
		if (segment->payload)
			entry->last_data_ns = now;
		/* Data, FIN, and a probe, whose number lies before the end of the sent bytes. */
		demands = behind != segment->seq || (__s32)(segment->seq - (__u32)entry->sent) < 0;
		if (demands) {
			asked = now >> ASKED_SHIFT;
			entry->asked = asked ?: 1;
		}
		ahead = behind - (__u32)entry->sent;
		if (ahead > 0) {
			entry->sent += ahead;
			speaks = segment->payload;
			/* Nothing follows a FIN: it was none, or not its sender's. */
			if (unlikely(entry->fin_ns))
				entry->fin_ns = 0;
		}
		ahead = segment->ack - (__u32)entry->acked;
		if (ahead > 0) {
			entry->acked += ahead;
			takes = 1;
		}
		if (unlikely(entry->far_fin))
			see_finished(entry, key);
		if (unlikely(segment->flags & TCP_FIN && !entry->fin_ns && behind == (__u32)entry->sent)) {
			/* An end answers within a tick, and the order says who closed first. */
			entry->fin_ns = bpf_ktime_get_ns();
			tell(entry, key, EVENT_FIN);
			see_fin(entry, key);
		}
	}
	mark(entry);
	evidence = bpf_map_lookup_elem(&backends, &slot);
	if (!evidence)
		return;
	/* Written at most once a tick, because all CPUs share it. */
	if (segment->down) {
		if (evidence->answered_ns != now)
			evidence->answered_ns = now;
		/* An end that hears nobody repeats bytes that it has sent before. */
		if (speaks && evidence->spoke_ns != now)
			evidence->spoke_ns = now;
		if (takes && evidence->taken_ns != now)
			evidence->taken_ns = now;
	} else {
		if (demands && evidence->asked_ns <= evidence->answered_ns && evidence->asked_ns != now)
			evidence->asked_ns = now;
		if (segment->payload && evidence->given_ns <= evidence->taken_ns && evidence->given_ns != now)
			evidence->given_ns = now;
	}
}

__inline __u16 rescaled(__u16 window, __s8 shift)
{
	__u32 wide = window;

	if (shift >= 0)
		wide <<= shift & 15;
	else
		wide >>= -shift & 15;
	return wide > WINDOW_MAX ? WINDOW_MAX : wide;
}

/*
 * Decrements the time to live and, if the entry says so, clears the ECN bits; returns the
 * change of the sum for IPv6, which has no checksum. `ip` was checked to lie in the packet.
 */
__inline void rewrite_ipv4(struct ipv4 *ip, const struct address *src, const struct address *dst, int clear_ecn,
			   __u64 *pseudo)
{
	__u64 sum = 0;

	change(pseudo, ip->src, src->word[3]);
	change(pseudo, ip->dst, dst->word[3]);
	change(&sum, pair(ip->ttl, 0), pair(ip->ttl - 1, 0));
	if (clear_ecn)
		change(&sum, pair(0, ip->tos), pair(0, ip->tos & ~ECN_MASK));
	if (clear_ecn)
		ip->tos &= ~ECN_MASK;
	ip->ttl -= 1;
	ip->src = src->word[3];
	ip->dst = dst->word[3];
	fix_check(&ip->check, fold32(*pseudo) + sum);
}

__inline void rewrite_ipv6(struct ipv6 *ip, const struct address *src, const struct address *dst, int clear_ecn,
			   __u64 *pseudo, __u64 *other)
{
	__u32 i;

	for (i = 0; i < 4; i++) {
		change(pseudo, ip->src.word[i], src->word[i]);
		change(pseudo, ip->dst.word[i], dst->word[i]);
	}
	change(other, pair(0, ip->hop_limit), pair(0, ip->hop_limit - 1));
	if (clear_ecn) {
		/* The class lies across two bytes, its ECN bits in the second. */
		change(other, pair(0, ip->head[1]), pair(0, ip->head[1] & ~(ECN_MASK << 4)));
		ip->head[1] &= ~(ECN_MASK << 4);
	}
	ip->hop_limit -= 1;
	ip->src = *src;
	ip->dst = *dst;
}

/* Whether the packet, or each packet that it will be cut into, fits the outgoing interface. */
__inline int fits(struct __sk_buff *skb, __u32 ifindex, __u32 headers)
{
	__u32 mtu = 0;
	long verdict = bpf_check_mtu(skb, ifindex, &mtu, 0, 0);

	if (verdict)
		return verdict > 0 ? TOO_LARGE : -1;
	return skb->gso_size && skb->gso_size + headers > mtu ? TOO_LARGE : 0;
}

/*
 * A packet that is too large for the next interface, whose MTU was changed during the
 * flow: it would be lost again and again. The program tells both ends that the
 * connection is over; an end that does not get that is answered with RST from now on.
 */
__function int end_both(struct __sk_buff *skb, const struct packet *packet, struct entry *entry)
{
	__u32 tcp_at = packet->tcp, ifindex;
	struct rst rst = {};
	struct entry *other;
	struct tcp tcp;
	int partial;

	count(OVERSIZED);
	entry->action = ACTION_RESET;
	entry->rst_ns = bpf_ktime_get_ns();
	mark(entry);
	tell(entry, &packet->key, EVENT_OVERSIZED);
	other = partner(entry, packet->key.family);
	rst.seq = entry->sent;
	if (other) {
		other->action = ACTION_RESET;
		/* The far end's position: the number that it must accept. */
		rst.seq = other->acked;
	}
	rst.family = packet->key.family;
	rst.flags = TCP_RST;
	rst.src = entry->src;
	rst.dst = entry->dst;
	rst.sport = entry->sport;
	rst.dport = entry->dport;
	ifindex = entry->ifindex;
	partial = is_partial(skb, tcp_at);
	if (partial < 0 || answer(skb, packet))
		return DROP;
	count(RESET);
	bpf_clone_redirect(skb, skb->ifindex, 0);
	rst.partial = partial;
	if (put_rst(skb, tcp_at, &rst))
		return DROP;
	return bpf_redirect_neigh(ifindex, 0, 0, 0);
}

__function int remember_fragment(const struct packet *packet, const struct entry *entry)
{
	struct fragment_key key = { .src = packet->key.src, .dst = packet->key.dst };
	struct fragment onward = {};

	key.id = packet->fragment_id;
	key.family = packet->key.family;
	onward.src = entry->src;
	onward.dst = entry->dst;
	onward.ifindex = entry->ifindex;
	onward.flags = entry->flags;
	return bpf_map_update_elem(&fragments, &key, &onward, 0);
}

/*
 * A card that merges segments itself (LRO) says only that their sums were right (CHECKSUM_UNNECESSARY). The card that they
 * leave by would cut them, and complete a sum that was never begun: every receiver drops them. Without that word the kernel
 * begins it anew (net/core/dev.c, netif_needs_gso; net/ipv4/tcp_offload.c, tcp4_gso_segment). What the kernel has merged
 * itself (GRO) comes with the sum begun, and is left alone.
 */
__inline void begin_sum_of_merged(struct __sk_buff *skb)
{
	if (skb->gso_size)
		bpf_csum_level(skb, BPF_CSUM_LEVEL_RESET);
}

__inline int leave(__u32 ifindex, __u32 flags)
{
	/* With the route that is found here the kernel does not ask by which interface a packet from an address of its own came. */
	if (flags & FLAG_LOCAL)
		return bpf_redirect_neigh(LOOPBACK, 0, 0, 0);
	return bpf_redirect_neigh(ifindex, 0, 0, 0);
}

/* Returns a verdict, or TOO_LARGE with the packet unchanged. */
__function int splice(struct __sk_buff *skb, const struct packet *packet, struct entry *entry)
{
	__u32 at = packet->tcp, length, before, after, *word;
	int clear_ecn = entry->flags & FLAG_CLEAR_ECN, room, counted;
	__u64 sum = 0, pseudo = 0, other = 0;
	__u8 family = packet->key.family;
	struct segment segment = {};
	void *data, *end;
	struct tcp *tcp;

	if (at > TCP_AT_MAX || linear(skb, at + TCP_LEN))
		return drop(DROP_SHORT);
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	tcp = data + at;
	if ((void *)(tcp + 1) > end)
		return drop(DROP_SHORT);
	length = (tcp->offset >> 4) * 4;
	if (length < TCP_LEN || at + length > packet->end)
		return drop(DROP_SHORT);
	segment.seq = ntohl(tcp->seq);
	segment.ack = ntohl(tcp->ack);
	segment.flags = tcp->flags;
	segment.payload = packet->end - at - length;
	segment.options = length - TCP_LEN;
	segment.down = !!(entry->flags & FLAG_DOWN);
	if (unlikely((segment.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) && !segment.down && begins_anew(entry, &packet->key)) {
		count(REUSED);
		return NEXT;
	}
	/* No kernel sends RST with payload. */
	if (unlikely(segment.flags & TCP_RST))
		segment.whole = !segment.payload && is_whole(skb, packet, length);
	counted = counts(entry, &segment, &packet->key);
	if (!(entry->flags & FLAG_LOCAL)) {
		room = fits(skb, entry->ifindex, at - ETH_LEN + length);
		if (unlikely(room < 0))
			return drop(DROP_ERROR);
		if (unlikely(room == TOO_LARGE))
			return counted ? TOO_LARGE : drop(DROP_OVERSIZED);
	}
	if (unlikely(packet->first_fragment && counted))
		remember_fragment(packet, entry);
	if (linear(skb, at + length))
		return drop(DROP_ERROR);
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	tcp = data + at;
	if ((void *)(tcp + 1) > end)
		return drop(DROP_ERROR);

	if (family == 4) {
		struct ipv4 *ip = data + ETH_LEN;

		if ((void *)(ip + 1) > end)
			return drop(DROP_ERROR);
		if (ip->ttl <= 1)
			return drop(DROP_TTL);
		if (clear_ecn && (ip->tos & ECN_MASK) == ECN_CONGESTED)
			return drop(DROP_ECN);
		rewrite_ipv4(ip, &entry->src, &entry->dst, clear_ecn, &pseudo);
	} else {
		struct ipv6 *ip = data + ETH_LEN;

		if ((void *)(ip + 1) > end)
			return drop(DROP_ERROR);
		if (ip->hop_limit <= 1)
			return drop(DROP_TTL);
		if (clear_ecn && (ip->head[1] >> 4 & ECN_MASK) == ECN_CONGESTED)
			return drop(DROP_ECN);
		rewrite_ipv6(ip, &entry->src, &entry->dst, clear_ecn, &pseudo, &other);
	}
	before = (__u32)tcp->sport | (__u32)tcp->dport << 16;
	after = (__u32)entry->sport | (__u32)entry->dport << 16;
	change(&sum, before, after);
	tcp->sport = entry->sport;
	tcp->dport = entry->dport;
	after = htonl(segment.seq + entry->seq);
	change(&sum, tcp->seq, after);
	tcp->seq = after;
	if (likely(segment.flags & TCP_ACK)) {
		after = htonl(segment.ack + entry->ack);
		change(&sum, tcp->ack, after);
		tcp->ack = after;
	}
	after = htons(rescaled(ntohs(tcp->window), entry->window_shift));
	change(&sum, tcp->window, after);
	tcp->window = after;
	if (clear_ecn) {
		change(&sum, pair(0, tcp->flags), pair(0, tcp->flags & ~(TCP_ECE | TCP_CWR)));
		tcp->flags &= ~(TCP_ECE | TCP_CWR);
	}
	word = (void *)(tcp + 1);
	if (likely(segment.options == 12 && (void *)(word + 3) <= end && *word == htonl(TIMESTAMPS_ALONE))) {
		after = htonl(ntohl(word[1]) + entry->tsval);
		change(&sum, word[1], after);
		word[1] = after;
		after = htonl(echo(ntohl(word[2]), entry->tsecr));
		change(&sum, word[2], after);
		word[2] = after;
	} else if (segment.options) {
		__s64 options = rewrite_options(skb, at + TCP_LEN, segment.options, entry);

		if (options < 0)
			return drop(DROP_ERROR);
		sum += options;
	}
	if (likely(counted))
		note(skb, entry, &segment, &packet->key);
	/* A checksum that the interface completes (CHECKSUM_PARTIAL) needs only the pseudo header; the kernel knows which is which. */
	if (bpf_l4_csum_replace(skb, at + CHECK_OFFSET, 0, fold32(sum), 0) ||
	    bpf_l4_csum_replace(skb, at + CHECK_OFFSET, 0, fold32(pseudo), BPF_F_PSEUDO_HDR))
		return drop(DROP_ERROR);
	/*
	 * A sum that the interface took over the whole packet (CHECKSUM_COMPLETE): the kernel has taken the addresses for
	 * IPv4's, which have a checksum that makes up for them.
	 */
	if (family == 6)
		bpf_csum_update(skb, fold32(fold32(pseudo) + other));
	begin_sum_of_merged(skb);
	count(SPLICED);
	return leave(entry->ifindex, entry->flags);
}
