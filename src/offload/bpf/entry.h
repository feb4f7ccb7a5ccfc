/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps and their elements. src/offload/entry/codec.rs, counters.rs and program/pins.rs have the same layouts in
 * Rust. Change LAYOUT in pins.rs with any of them, or a process of another version would misread the pinned maps.
 */
#pragma once
#include "abi.h"

/* Addresses are in IPv6 form, IPv4 ones mapped; ports and addresses in network order, all else in the host's. */
struct address {
	__u32 word[4];
};

/* A packet's addresses on arrival. The family keeps an IPv6 packet with a mapped source from matching an IPv4 flow. */
struct key {
	struct address src, dst;
	__u16 sport, dport;
	__u8 family; /* 4 or 6 */
	__u8 zero[3];
};

enum action {
	ACTION_PASS = 0,
	ACTION_SPLICE = 1,
	ACTION_FORWARD = 2,
	ACTION_GUARD = 3,
	ACTION_RESET = 4,
	ACTION_WITNESS = 5, /* passes as if there were no entry, but is noted: its flow is in its sockets and may be offloaded */
};

enum flag {
	FLAG_DOWN = 1,	    /* from the backend to the client */
	FLAG_CLEAR_ECN = 2, /* the receiver's leg has not negotiated ECN */
	FLAG_LOCAL = 4,	    /* to a socket on this host */
	FLAG_COMMITTED = 8, /* the sockets are gone; for user space only */
	FLAG_STANDBY = 16,	    /* another instance's; for user space only */
	FLAG_LENT = 32,	    /* ACTION_FORWARD: no record says that a flow is there, so a SYN is not for it */
	FLAG_BY_LO = 64,    /* their sender is a socket on this host: they come by lo once the VIP is here, too */
	FLAG_STAYS_HERE = 128, /* it was offloaded here, and its backend is on this host; for user space only */
};

/* Of the packets by which user space tells its sockets of their far ends' acknowledgements. wire.rs: TOLD_MARK */
enum {
	TOLD_MARK = 22867,
};

enum mark {
	MARK_REUSED = 1,
};

enum doubt {
	DOUBT_TOLD = 1,
	DOUBT_TAKE = 2,	     /* the positions are old: those of the next segment are taken, as far as peers may be behind */
	DOUBT_TAKE_NEAR = 3, /* the same of one that lies within the windows */
};

/*
 * One direction of a flow. The program writes only to the last of the four cache
 * lines that the element has in the kernel: header 56 bytes, key 40, entry 160.
 */
struct entry {
	/*
	 * The packet's addresses when it leaves. ACTION_FORWARD: dst is the next hop;
	 * ACTION_RESET: with an ifindex and without a port, dst is the next hop for RSTs.
	 */
	struct address src, dst;
	__u16 sport, dport;
	union {
		/* Added modulo 2^32; ack also to SACK blocks. */
		struct {
			__u32 seq, ack, tsval, tsecr;
		};
		/* ACTION_FORWARD, ACTION_RESET: packets from this address are not sent back to it. Zero: not known. */
		__u8 owner_mac[6];
	};
	__u8 action;
	__s8 window_shift; /* left; right if negative */
	__u16 flags;
	__u32 ifindex;
	__u16 backend;
	/* The largest windows, as powers of two of bytes: the sender's own (the most that it acknowledges at once), the receiver's. */
	__u8 own_window, far_window;
	/* For user space only: the identity, which must outlive the process. The two directions share the space. */
	__u64 flow_id;
	__u64 share; /* up: when it was accepted, ns; down: its backend's key */
	__u64 bytes_before;
	__u32 connect_us;
	__u32 start_position;

	/* Positions as 64 bits, the low half of which is the number in the packet. */
	__u64 sent;
	__u64 acked;
	__u64 packets;
	/* On CLOCK_MONOTONIC; those of last packets are exact to a tick of the kernel. */
	__u64 last_ns;
	__u64 last_data_ns;
	/* Time of a FIN with nothing sent beyond it; it counts once the receiver has acknowledged it. */
	__u64 fin_ns;
	__u64 rst_ns;
	__u16 marks;
	/* User space knows of a segment outside the windows, and has not asked for the next one yet. */
	__u8 doubted;
	/* The other side's FIN has passed, and the sender of this direction has not acknowledged it yet. */
	__u8 far_fin;
	/* Time of the last packet that demands an answer: data, FIN, a probe. In units of 2^20 ns, modulo 2^32; 0: never. */
	__u32 asked;
};

enum {
	ASKED_SHIFT = 20,
};

_Static_assert(sizeof(struct key) == 40, "codec.rs: KEY_SIZE");
_Static_assert(sizeof(struct entry) == 160, "codec.rs: ENTRY_SIZE");

enum counter {
	SPLICED,
	FORWARDED,
	GUARDED,
	RESET,
	REUSED,
	FRAGMENT,
	ICMP,
	LOOP,
	BAD_OPTIONS,
	OVERSIZED,
	DROP_TTL,
	DROP_SHORT,
	DROP_ECN,
	DROP_ERROR,
	DROP_RST,
	ASKED,
	FORWARDED_BY_PORT,
	UNFIT,
	DROP_OVERSIZED,
	UNASKED,
	COUNTERS,
};

/* Whether a backend answers, over all its flows. */
struct evidence {
	__u64 asked_ns;	   /* first packet that demands an answer since the last one from the backend */
	__u64 answered_ns; /* last packet from the backend, which its kernel may have sent alone */
	__u64 spoke_ns;	   /* last packet with new bytes from it, as only its process sends them */
	__u64 given_ns;	   /* first packet with bytes for it since the last one in which it acknowledged some */
	__u64 taken_ns;	   /* last packet in which it acknowledged bytes, or a FIN, for the first time */
};

/* The rule for packets that match neither an entry nor a socket, by their destination; port 0: any of a port range. */
struct service {
	__u64 guard_until_ns; /* until then they are not answered */
	__u64 filled_ns;      /* when user space last filled up `asks` */
	__u32 then;	      /* an enum then, after that */
	/* Packets that the program may report before user space fills this up; further ones are dropped, while user space runs. */
	__s32 asks;
	/* All live instances have told of their flows and go on telling, so a packet that stays unknown belongs to nobody. */
	__u32 all_told;
	__u32 zero;
};

_Static_assert(sizeof(struct service) == 32, "unknown.rs: SERVICE_SIZE");

/* Number of questions about one source, by a hash of its address or network, in one round. */
struct source {
	__u32 round;
	__u32 asks;
};

/* An unknown packet, by a hash, since when it comes, and when it last came. */
struct seen {
	__u32 hash;
	__u16 since, last; /* in units of 2^24 ns, modulo 2^16 */
};

enum {
	SOURCES = 8192,
	UNKNOWN_PACKETS = 131072,
	SLOTS = 4, /* of them, in which a packet may be */
};

enum then {
	THEN_PASS = 0,
	THEN_RESET = 1,
	THEN_ASK = 2, /* dropped, and user space is told of it, of so many */
};

/* The next hop to an instance. */
struct hop {
	struct address address;
	__u32 ifindex; /* 0: not by this family */
};

/*
 * The source ports of an instance's backend legs: packets to one of them that match no
 * entry are sent there. Without a hop they belong to this instance, or to a dead one.
 */
struct port_range {
	__u16 first, last; /* in the host's order; last 0: none */
	__u8 mac[6];	   /* what comes from there is not sent back */
	__u8 zero[2];
	struct hop v4, v6;
};

_Static_assert(sizeof(struct port_range) == 52, "unknown.rs: PORT_RANGE_SIZE");

enum {
	PORT_RANGES = 16,
};

/*
 * A connection to a port of a range that is not Baton's, because another program translates that
 * port's addresses. Its SYN makes it known for a moment; conntrack's answer then holds for longer.
 */
struct foreign {
	__u64 until_ns;
	__u64 told_ns; /* when user space was last told that it goes on */
};

struct place {
	struct address address;
	__u16 port;
	__u8 family;
	__u8 zero;
};

/* The destination of later fragments of a packet. */
struct fragment_key {
	struct address src, dst;
	__u32 id;
	__u32 family;
};

struct fragment {
	struct address src, dst;
	__u32 ifindex;
	__u32 flags;
};

/* Reported to user space as they happen, as long as there is room; a scan of the entries finds the same facts. */
enum event_kind {
	EVENT_FIN = 1,
	EVENT_RST = 2,
	EVENT_REUSED = 3,
	EVENT_OVERSIZED = 4,
	EVENT_UNKNOWN = 5,
	EVENT_DOUBT = 6,
	EVENT_FINISHED = 7,
	EVENT_FOREIGN = 8,
};

struct event {
	struct key key;
	__u64 flow_id;
	__u32 kind;
	__u32 down;
};

/*
 * EVENT_UNKNOWN: a packet that no entry and no socket matched; it was dropped. EVENT_DOUBT: a segment of a flow whose
 * numbers no receiver would accept. EVENT_FOREIGN: a packet that passed, as not Baton's. As long as other events.
 */
struct unknown_packet {
	struct key key;
	__u32 seq, ack; /* host order */
	__u32 kind;
	__u16 length;
	__u8 flags;
	__u8 zero;
};

_Static_assert(sizeof(struct unknown_packet) == sizeof(struct event), "events.rs: they differ by their kind only");

/* Data that user space keeps of a flow and that its entries have no room for; by the flow's id. */
struct note {
	__u64 word[4];
};

/*
 * Marks of flows with packets since user space last looked: a byte per flow, which
 * several flows share if there are many. So user space need not look through all entries.
 */
struct marks {
	__u8 flow[64];
};

enum {
	MARKS_SHIFT = 18, /* moved.rs: MARKS */
	MARKS_LINE = sizeof(struct marks),
	MARKS_LINES = (1 << MARKS_SHIFT) / MARKS_LINE,
	FLOW_COUNT_BITS = 48, /* of an id; its instance's tag is above */
	FLOW_TAG_STRIDE = 40503,
};

struct meta {
	__u64 magic;
	__u32 layout;
	__u32 services; /* how many there are: none costs no look-up */
	__u8 program[16]; /* digest of the object */
};

/* The loader sets max_entries. Memory is taken as entries come. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct key);
	__type(value, struct entry);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct evidence);
} backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct place);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORT_RANGES);
	__type(key, __u32);
	__type(value, struct port_range);
} port_ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SOURCES);
	__type(key, __u32);
	__type(value, struct source);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UNKNOWN_PACKETS);
	__type(key, __u32);
	__type(value, struct seen);
} unknown_packets SEC(".maps");

/* The oldest may be evicted: TCP repeats a packet whose later fragments are lost. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps");

/* The oldest may be evicted: user space asks conntrack again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct key);
	__type(value, struct foreign);
} foreign SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct meta);
} meta SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MARKS_LINES);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct marks);
} moved SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct note);
} notes SEC(".maps");

__function void tell(const struct entry *entry, const struct key *key, __u32 kind)
{
	struct event event = { .key = *key, .flow_id = entry->flow_id, .kind = kind };

	event.down = entry->flags & FLAG_DOWN;
	bpf_ringbuf_output(&events, &event, sizeof(event), 0);
}

/* Called after the entry was written: user space takes the mark first, then reads, and reads once more a moment later. */
__inline void mark(const struct entry *entry)
{
	__u32 at = (__u32)entry->flow_id + (__u32)(entry->flow_id >> FLOW_COUNT_BITS) * FLOW_TAG_STRIDE, line;
	struct marks *marks;

	at &= (1 << MARKS_SHIFT) - 1;
	line = at / MARKS_LINE;
	marks = bpf_map_lookup_elem(&moved, &line);
	/* Read far more often than written, by all CPUs. */
	if (marks && !marks->flow[at % MARKS_LINE])
		marks->flow[at % MARKS_LINE] = 1;
}
