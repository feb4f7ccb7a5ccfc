//! Carries out a flow's actions: sockets, map and ends, counted independently of the machine, and one process after the
//! other.

use super::*;

const MS: u64 = 1_000_000;
const PATIENCE_NS: u64 = 30_000 * MS;

/// Limit for one process's challenges of an end: two, and a third if it is silent.
const CHALLENGES_MAX: u32 = 3;

/// Events from outside. One that is impossible at its time is skipped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    BarrierOver,
    /// A packet that read the map before the entries were made comes into a socket.
    SlipsIn,
    /// The sockets accept no more bytes.
    Blocks,
    /// They accept bytes, and all bytes passed on through them are acknowledged.
    Acknowledged,
    /// The engine has its turn.
    Turn {
        readable: bool,
    },
    /// A wait of so many ms.
    Wait(u64),
    /// A timer, of this step or of one before.
    Due,
    /// The socket of this end fails at the next pass.
    LegBreaks(usize),
    /// Somebody removes the entries.
    EntriesRemoved,
    /// An end's RST passes by the entries.
    ResetByEnd(usize),
    /// Both FINs pass by the entries and are acknowledged.
    Finished,
    /// The engine looks at the flow's packets, though nothing new has come.
    LooksAgain,
    /// The worker has the flow ended.
    Ordered,
    /// The engine gives up a silent end.
    FallsSilent,
}

#[derive(Clone, Debug)]
pub(super) struct Script {
    /// The map has no room for this entry.
    pub(super) write_fails: Option<usize>,
    /// When the flow is offered, its worker holds bytes.
    pub(super) holds_bytes: bool,
    pub(super) can_mark: bool,
    pub(super) events: Vec<Event>,
    /// The number of effects of each process before it is killed; one more process is not killed.
    pub(super) kills: Vec<u32>,
    /// Whether the ends receive the next challenge.
    pub(super) hears: Vec<bool>,
}

/// The process was killed.
struct Killed;

/// Both sockets, as data of the machine.
#[derive(Debug)]
struct BothSockets;

/// Client or backend.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    /// How often this host told it that the flow is over, by a socket or by the answer to a challenge.
    told: u32,
    /// It has ended the flow itself.
    is_over: bool,
    /// When it last answered a challenge of this process.
    said_ns: u64,
    /// Number of challenges by this process.
    challenged: u32,
    /// It received none of a whole series of challenges, and is left to the code that repeats resets.
    unreachable: bool,
}

/// The events in the flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Nothing,
    Reset(EndReason),
    Finished,
}

/// The record of one process.
#[derive(Debug, Default)]
struct Process {
    barrier_awaited: bool,
    barrier_over: bool,
    look_wanted: bool,
    resets: u32,
    told_offloaded: u32,
    recovered: bool,
    told_over: u32,
    told_sockets: bool,
    /// When the entries were written.
    entered_ns: u64,
}

pub(super) struct World {
    script: Script,
    now_ns: u64,
    step: Option<OffloadStep<BothSockets>>,
    process: Process,
    effects_left: Option<u32>,
    sockets: [bool; 2],
    with_worker: bool,
    entries: [Option<LeftEntry>; 2],
    ends: [End; 2],
    /// Bytes in the sockets: unread ones; read but not passed on; passed on but not acknowledged.
    unread: bool,
    held: bool,
    unacknowledged: bool,
    blocked: bool,
    breaks: Option<usize>,
    shown: Shown,
    challenges: usize,
    /// The killed process had nothing left to do for the flow but to watch it.
    must_go_on: bool,
    pub(super) seen: BTreeSet<String>,
}

type Lives = Result<(), Killed>;

impl World {
    pub(super) fn new(script: Script) -> Self {
        Self {
            now_ns: 1,
            step: None,
            process: Process::default(),
            effects_left: None,
            sockets: [true; 2],
            with_worker: true,
            entries: [None; 2],
            ends: [End::default(); 2],
            unread: false,
            held: script.holds_bytes,
            unacknowledged: false,
            blocked: false,
            breaks: None,
            shown: Shown::Nothing,
            challenges: 0,
            must_go_on: false,
            seen: BTreeSet::new(),
            script,
        }
    }

    pub(super) fn run(&mut self) {
        let mut kills = std::mem::take(&mut self.script.kills).into_iter();
        let mut events = std::mem::take(&mut self.script.events).into_iter();
        self.effects_left = kills.next();
        let mut is_first = true;
        loop {
            let life = if is_first { self.offload() } else { self.recover() };
            is_first = false;
            if life.and_then(|()| self.live(&mut events)).is_ok() {
                break;
            }
            self.be_killed();
            self.effects_left = kills.next();
        }
        self.look_back();
    }

    /// A step during which the process cannot be killed.
    fn effect(&mut self, effect: impl FnOnce(&mut Self)) -> Lives {
        match &mut self.effects_left {
            Some(0) => return Err(Killed),
            Some(left) => *left -= 1,
            None => {}
        }
        effect(self);
        self.check();
        Ok(())
    }

    fn be_killed(&mut self) {
        let step = self.step.as_ref().map_or("its sockets", name);
        self.saw(format!("killed in {step}"));
        let was_watched = self.process.told_offloaded > 0 || self.process.recovered;
        self.must_go_on = match self.step.take() {
            Some(OffloadStep::Alone) => was_watched,
            Some(OffloadStep::Over) => self.entries.iter().all(Option::is_some),
            _ => false,
        };
        for (end, socket) in self.ends.iter_mut().zip(&mut self.sockets) {
            // The kernel closes it.
            end.told += u32::from(std::mem::take(socket));
            (end.challenged, end.said_ns) = (0, 0);
        }
        self.with_worker = false;
        self.process = Process::default();
        self.check();
    }

    fn offload(&mut self) -> Lives {
        for index in [1, 0] {
            if self.script.write_fails == Some(index) {
                self.saw("handed back");
                return self.take_out_entries();
            }
            self.effect(|world| world.entries[index] = Some(LeftEntry { committed: false, splices: true }))?;
        }
        let (step, asked) = OffloadStep::enter(BothSockets, self.now_ns);
        (self.step, self.with_worker, self.process.entered_ns) = (Some(step), false, self.now_ns);
        self.carry_out(asked)?;
        assert!(!self.held, "a request waits for the barrier");
        Ok(())
    }

    fn recover(&mut self) -> Lives {
        let [up, down] = self.entries;
        if up.is_none() && down.is_none() {
            return Ok(());
        }
        if up.is_none() || down.is_none() {
            self.saw("one entry left");
        }
        self.step = Some(OffloadStep::Alone);
        if goes_on(up, down) {
            self.saw("recovered");
            self.process.recovered = true;
            let told = self.ends.iter().any(|end| end.told > 0);
            assert!(!told, "a flow goes on, and an end was told that it is over");
            self.see_end()
        } else {
            self.saw("reset after a kill");
            assert!(!self.must_go_on, "an offloaded flow is reset because its process was killed");
            self.reset()
        }
    }

    fn live(&mut self, events: &mut impl Iterator<Item = Event>) -> Lives {
        self.look_at_rest();
        for event in events {
            self.happen(event)?;
            self.look_at_rest();
        }
        // No more interference, and no end is slow.
        for round in 0..20 {
            assert!(round < 3 || !self.has_sockets(), "it stays in its sockets");
            for event in [Event::BarrierOver, Event::Acknowledged, Event::Turn { readable: true }, Event::Due] {
                self.happen(event)?;
                self.look_at_rest();
            }
            self.now_ns += 1000 * MS;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Lives {
        let has_sockets = self.has_sockets();
        let passes = self.entries.iter().all(|entry| entry.is_some_and(|entry| entry.splices));
        match event {
            Event::BarrierOver if std::mem::take(&mut self.process.barrier_awaited) => {
                self.process.barrier_over = true;
                let asked = self.step.as_mut().map(OffloadStep::handle_barrier_over);
                self.carry_out(asked.unwrap_or_default())?;
            }
            Event::SlipsIn if has_sockets && !self.process.barrier_over => self.unread = true,
            Event::Blocks => self.blocked = true,
            Event::Acknowledged => (self.unacknowledged, self.blocked) = (false, false),
            Event::Turn { readable } if std::mem::take(&mut self.process.look_wanted) => self.look(readable)?,
            Event::Wait(ms) => self.now_ns += ms * MS,
            Event::Due => self.due()?,
            Event::LegBreaks(end) if has_sockets => self.breaks = Some(end),
            Event::EntriesRemoved if has_sockets => self.entries = [None; 2],
            Event::ResetByEnd(end) if passes && self.shown == Shown::Nothing => {
                self.ends[end].is_over = true;
                self.shown = Shown::Reset([EndReason::ClientReset, EndReason::BackendReset][end]);
                self.see_end()?;
            }
            Event::Finished if passes && self.shown == Shown::Nothing => {
                self.ends.iter_mut().for_each(|end| end.is_over = true);
                self.shown = Shown::Finished;
                self.see_end()?;
            }
            Event::LooksAgain => self.see_end()?,
            Event::Ordered if self.step.as_ref().is_some_and(|step| !step.is_ending()) => {
                self.process.told_over += 1;
                self.reset()?;
            }
            Event::FallsSilent if matches!(self.step, Some(OffloadStep::Alone)) => {
                self.end(EndReason::BackendTimedOut)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn carry_out(&mut self, asked: Vec<SettleAction<BothSockets>>) -> Lives {
        for action in asked {
            match action {
                SettleAction::Pass => {
                    if let Some(end) = self.breaks.take() {
                        self.ends[end].is_over = true;
                        let timed_out = self.script.hears[0];
                        let follows = self.step.as_ref().map(|step| step.handle_broken(end == 0, timed_out));
                        return self.carry_out(follows.unwrap_or_default());
                    }
                    self.effect(|world| {
                        world.held |= std::mem::take(&mut world.unread);
                        if !world.blocked {
                            world.unacknowledged |= std::mem::take(&mut world.held);
                        }
                    })?;
                }
                SettleAction::AwaitBarrier => self.process.barrier_awaited = true,
                SettleAction::Look => self.look(true)?,
                SettleAction::TellSockets => self.process.told_sockets = true,
                SettleAction::LookAgain => self.process.look_wanted = true,
                SettleAction::Close(BothSockets) => {
                    assert!(self.process.barrier_over, "a packet may still come into a socket that is closed");
                    assert!(!self.unread && !self.held, "bytes are lost with their socket");
                    assert!(!self.unacknowledged, "bytes are lost, and nobody will send them again");
                    self.effect(|world| world.sockets[0] = false)?;
                    self.effect(|world| world.sockets[1] = false)?;
                }
                SettleAction::Mark => {
                    let can_mark = self.script.can_mark;
                    if can_mark {
                        self.effect(|world| {
                            world.entries.iter_mut().flatten().for_each(|entry| entry.committed = true);
                        })?;
                    }
                    let follows = self.step.as_ref().map(|step| step.handle_marked(can_mark));
                    self.carry_out(follows.unwrap_or_default())?;
                }
                SettleAction::TellOffloaded => {
                    self.saw("offloaded");
                    self.process.told_offloaded += 1;
                    self.see_end()?;
                }
                SettleAction::End(reason) => self.end(reason)?,
            }
        }
        Ok(())
    }

    fn look(&mut self, readable: bool) -> Lives {
        let is_lost = self.entries.iter().any(Option::is_none);
        let passed_on = match (readable, is_lost) {
            (false, _) => PassedOn::Unread,
            (true, true) if !self.held => PassedOn::EntriesLost,
            _ if self.held || self.unacknowledged => PassedOn::Awaited { by_client_alone: self.script.hears[0] },
            _ => PassedOn::Arrived,
        };
        let is_filling = matches!(self.step, Some(OffloadStep::Filling { .. }));
        let is_overdue = self.now_ns - self.process.entered_ns > PATIENCE_NS;
        let now_ns = self.now_ns;
        let asked = self.step.as_mut().map(|step| step.handle_look(passed_on, now_ns, PATIENCE_NS)).unwrap_or_default();
        let ends = asked.iter().any(|action| matches!(action, SettleAction::End(_)));
        if is_filling {
            let must_end = match passed_on {
                PassedOn::Arrived | PassedOn::Unread => false,
                PassedOn::Awaited { .. } => is_overdue,
                PassedOn::EntriesLost => true,
            };
            assert_eq!(ends, must_end, "{passed_on:?}, overdue: {is_overdue}");
            if passed_on == PassedOn::Unread {
                self.saw("unread");
            }
        }
        self.process.told_sockets = false;
        self.carry_out(asked)?;
        if matches!(self.step, Some(OffloadStep::Filling { .. })) {
            assert!(self.process.told_sockets, "the sockets send again what has arrived");
        }
        Ok(())
    }

    /// Checks whether the flow's packets show its end.
    fn see_end(&mut self) -> Lives {
        let is_finished = match self.shown {
            Shown::Nothing => return Ok(()),
            Shown::Reset(_) => false,
            Shown::Finished => true,
        };
        let ending = self.step.as_ref().and_then(|step| step.handle_ended(is_finished));
        match (ending, self.shown) {
            (None, _) => {}
            (Some(Ending::Reset), Shown::Reset(reason)) => {
                self.saw("Reset");
                self.end(reason)?;
            }
            (Some(Ending::Reset), _) => panic!("a flow is reset that has ended in order"),
            (Some(Ending::Fade), _) => {
                assert_eq!(self.shown, Shown::Finished, "an idle end will never know");
                self.saw("Fade");
                self.process.told_over += 1;
                self.step.as_mut().unwrap().handle_over();
            }
        }
        Ok(())
    }

    fn end(&mut self, reason: EndReason) -> Lives {
        self.saw(format!("End({reason:?})"));
        self.process.told_over += 1;
        self.reset()
    }

    fn reset(&mut self) -> Lives {
        self.process.resets += 1;
        let now_ns = self.now_ns;
        let sockets = self.step.as_mut().and_then(|step| step.handle_reset(now_ns));
        self.effect(|world| world.entries.iter_mut().flatten().for_each(|entry| entry.splices = false))?;
        if sockets.is_some() {
            for index in [0, 1] {
                self.effect(|world| {
                    world.ends[index].told += u32::from(std::mem::take(&mut world.sockets[index]));
                })?;
            }
        }
        self.challenge([true; 2])
    }

    fn challenge(&mut self, whom: [bool; 2]) -> Lives {
        for index in (0..2).filter(|index| whom[*index]) {
            let hears = self.script.hears[self.challenges % self.script.hears.len()];
            self.challenges += 1;
            let Some(entry) = self.entries[index] else { continue };
            self.effect(|world| {
                let end = &mut world.ends[index];
                end.challenged += 1;
                if hears && !entry.splices {
                    (end.told, end.said_ns) = (end.told + 1, world.now_ns);
                }
            })?;
        }
        Ok(())
    }

    fn due(&mut self) -> Lives {
        self.now_ns += 700 * MS;
        match self.step.as_mut().map_or(DueAction::Nothing, OffloadStep::handle_due) {
            DueAction::Nothing => Ok(()),
            DueAction::Challenge => self.challenge([true; 2]),
            DueAction::HearEnds => {
                let last_ns = [0, 1].map(|index| self.entries[index].is_some().then_some(self.ends[index].said_ns));
                match self.step.as_mut().and_then(|step| step.handle_silence(last_ns)) {
                    None => panic!("it is being reset"),
                    Some(SilenceAction::Challenge(silent)) => {
                        self.saw("challenged once more");
                        for index in (0..2).filter(|index| !silent[*index]) {
                            self.effect(|world| world.entries[index] = None)?;
                        }
                        self.challenge(silent)
                    }
                    Some(SilenceAction::Remove(silent)) => {
                        let heard_too_little = |index: usize| {
                            let end = &self.ends[index];
                            self.entries[index].is_some() && end.challenged < 2 + u32::from(silent[index])
                        };
                        assert!(!heard_too_little(0) && !heard_too_little(1), "given up too soon");
                        for (end, _) in self.ends.iter_mut().zip(silent).filter(|(_, silent)| *silent) {
                            end.unreachable = true;
                        }
                        self.remove()?;
                        if silent != [false; 2] {
                            self.saw("told later");
                        }
                        Ok(())
                    }
                }
            }
            DueAction::RemoveIfQuiet => {
                assert_eq!(self.shown, Shown::Finished, "nobody has told its ends");
                self.remove()
            }
        }
    }

    fn remove(&mut self) -> Lives {
        self.take_out_entries()?;
        self.step = None;
        self.saw("removed");
        Ok(())
    }

    fn take_out_entries(&mut self) -> Lives {
        for index in [0, 1] {
            if self.entries[index].is_some() {
                self.effect(|world| world.entries[index] = None)?;
            }
        }
        Ok(())
    }

    fn has_sockets(&self) -> bool {
        self.step.as_ref().is_some_and(OffloadStep::has_sockets)
    }

    fn saw(&mut self, what: impl Into<String>) {
        self.seen.insert(what.into());
    }

    /// The invariants at every moment, as if it were the last one of the process.
    fn check(&self) {
        let both_stand = self.entries.iter().all(Option::is_some);
        for ((end, socket), own) in self.ends.iter().zip(self.sockets).zip(self.entries) {
            let is_told = end.told > 0 || end.is_over || end.unreachable;
            let is_refused = own.is_some_and(|entry| !entry.splices);
            assert!(
                socket || both_stand || is_refused || is_told,
                "an end that nobody serves and nobody resets: {:?}",
                self.ends
            );
            assert!(end.challenged <= CHALLENGES_MAX, "it was challenged {} times", end.challenged);
        }
        let has_mark = self.entries.iter().flatten().any(|entry| entry.committed);
        assert!(!has_mark || self.sockets == [false; 2], "an entry with the mark stands beside a socket");
        let alike = self.entries.iter().flatten().all(|entry| entry.committed == has_mark);
        assert!(alike, "one entry has the mark");
    }

    /// The invariants whenever the process waits.
    fn look_at_rest(&mut self) {
        if let Some(step) = &self.step {
            let name = name(step);
            self.saw(name);
        }
        let Process { resets, told_offloaded, told_over, .. } = self.process;
        assert!(resets <= 1 && told_offloaded <= 1 && told_over <= 1, "{:?}", self.process);
        match &self.step {
            None => {
                assert!(self.entries == [None; 2], "entries of a flow that is nobody's");
                assert!(self.with_worker || self.sockets == [false; 2], "sockets that are nobody's");
            }
            Some(OffloadStep::Entered { .. }) => {
                assert!(self.sockets == [true; 2] && self.process.barrier_awaited, "{:?}", self.process);
            }
            Some(OffloadStep::Filling { .. }) => {
                assert!(self.sockets == [true; 2] && self.process.look_wanted, "{:?}", self.process);
            }
            Some(OffloadStep::Alone) => {
                let [up, down] = self.entries;
                assert!(goes_on(up, down), "neither sockets nor entries: {:?}", self.entries);
                assert!(self.ends.iter().all(|end| end.told == 0), "an end of a flow that goes on was reset");
                assert!(self.shown == Shown::Nothing, "its end was not seen");
            }
            Some(OffloadStep::Resetting { .. }) => {
                assert!(self.sockets == [false; 2], "a flow that is reset has a socket");
            }
            Some(OffloadStep::Over) => assert!(self.ends.iter().all(|end| end.is_over)),
        }
    }

    fn look_back(&mut self) {
        match &self.step {
            None if self.with_worker => assert!(self.entries == [None; 2] && self.sockets == [true; 2]),
            None => {
                for end in &self.ends {
                    let is_told = end.told > 0 || end.is_over || end.unreachable;
                    assert!(is_told, "neither carried on nor reset: {:?}", self.ends);
                }
            }
            Some(OffloadStep::Alone) => {}
            Some(step) => panic!("it waits for ever: {step:?}"),
        }
    }
}

fn name<L>(step: &OffloadStep<L>) -> &'static str {
    match step {
        OffloadStep::Entered { .. } => "Entered",
        OffloadStep::Filling { .. } => "Filling",
        OffloadStep::Alone => "Alone",
        OffloadStep::Resetting { .. } => "Resetting",
        OffloadStep::Over => "Over",
    }
}
