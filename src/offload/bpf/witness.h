/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shows the addresses and numbers of a leg on the wire, while its socket still exists. A translation on this host
 * happens between this program and the socket, so a leg that appears here as its socket knows it is not translated.
 */
#pragma once
#include "splice.h"

/* The last segment's numbers; user space compares them with the socket's. */
__function int witness(struct __sk_buff *skb, const struct packet *packet, struct entry *entry)
{
	__u32 at = packet->tcp, behind;
	struct tcp tcp;

	if (at > TCP_AT_MAX || bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return 0;
	behind = at + (tcp.offset >> 4) * 4;
	if ((tcp.flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK || behind > packet->end)
		return 0;
	entry->sent = ntohl(tcp.seq) + (packet->end - behind) + !!(tcp.flags & TCP_FIN);
	entry->acked = ntohl(tcp.ack);
	entry->packets += 1;
	return 1;
}
