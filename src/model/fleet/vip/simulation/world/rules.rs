//! The rules at each step.

use super::*;

impl VipWorld {
    pub(super) fn is_steady(&self, one: usize, other: usize) -> bool {
        self.now_ns.saturating_sub(self.steady_ns[one][other].max(self.steady_ns[other][one])) > STEADY_NS
    }

    pub(super) fn judge_gain(&mut self, host: usize) {
        self.moves += 1;
        if let Some(next) = self.next.take().filter(|next| *next != host) {
            self.fail(format!("{} takes it, and {} is better", named(host), named(next)));
        }
        let has = |other: &usize| *other != host && self.hosts[*other].is_up && self.hosts[*other].lease_ns.is_some();
        let others: Vec<_> = (0..self.hosts.len()).filter(has).collect();
        if let Some(other) = others.into_iter().find(|other| self.is_steady(host, *other)) {
            self.fail(format!("{} takes it from {}, which has it and answers", named(host), named(other)));
        }
        if self.now_ns - self.mishap_ns > 2 * UNSERVED_MAX_NS && self.is_whole() {
            self.fail(format!("{} takes it though nothing has happened", named(host)));
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        let cuts = self.cut.iter().chain(&self.link_cut).flatten().any(|cut| *cut);
        !cuts
            && self.hosts.iter().all(|it| it.is_up && it.has_carrier && it.hears_gateway && !it.is_filtered)
            && self.one_lost_in == u64::MAX
    }

    /// Whether the host could have the VIP, and has met all conditions for a while.
    pub(super) fn is_able(&self, host: usize) -> bool {
        let it = &self.hosts[host];
        let runs = |process: &Process| {
            self.now_ns >= process.asleep_until_ns
                && self.now_ns - process.started_ns > 1500 * MS
                && process.stops_ns.is_none()
                && !process.is_evacuated
        };
        it.is_up && it.has_carrier && it.hears_gateway && !it.is_filtered && it.process.as_ref().is_some_and(runs)
    }

    pub(super) fn serves(&self, host: usize) -> bool {
        let it = &self.hosts[host];
        let runs = |process: &Process| self.now_ns >= process.asleep_until_ns;
        it.is_up && !it.is_filtered && it.lease_ns.is_some() && it.process.as_ref().is_some_and(runs)
    }

    /// The mishaps that take effect at once.
    fn judge_at_once(&mut self) {
        let now_ns = self.now_ns;
        for host in 0..self.hosts.len() {
            let it = &mut self.hosts[host];
            let has = it.lease_ns.is_some();
            let Some(process) = it.process.as_mut().filter(|process| now_ns >= process.asleep_until_ns) else {
                continue;
            };
            let must_not = process.is_evacuated || process.stops_ns.is_some();
            let is_wrong = must_not == has && (must_not || process.machine.holds());
            match is_wrong {
                false => process.wrong_ns = None,
                true => {
                    let since_ns = *process.wrong_ns.get_or_insert(now_ns);
                    if now_ns - since_ns > AT_ONCE_NS {
                        let what = if must_not { "keeps what it must give up" } else { "does not add it again" };
                        self.fail(format!("{} {what}", named(host)));
                    }
                }
            }
        }
    }

    /// A holder that cannot serve while another host can.
    fn judge_fitness(&mut self) {
        let now_ns = self.now_ns;
        let is_quiet = !self.cut.iter().chain(&self.link_cut).flatten().any(|cut| *cut) && self.one_lost_in == u64::MAX;
        let could = |host: usize| {
            let fit =
                |process: &Process| process.ready && process.has_backend && process.says.ready && process.says.hears;
            self.is_able(host) && self.hosts[host].process.as_ref().is_some_and(fit)
        };
        let able: Vec<_> = (0..self.hosts.len()).map(could).collect();
        let mut faults = Vec::new();
        for (host, it) in self.hosts.iter_mut().enumerate() {
            let Some(process) = &mut it.process else { continue };
            let is_awake = now_ns >= process.asleep_until_ns + GRACE_NS;
            let has_heir = able.iter().enumerate().any(|(other, is_able)| other != host && *is_able);
            // Behind a filter it hears of no heir.
            let is_unfit = !(process.ready && process.has_backend || it.is_filtered);
            if !(is_quiet && is_awake && has_heir && is_unfit && process.machine.holds()) {
                process.unfit_ns = None;
                continue;
            }
            let lacks_only_backend = process.ready;
            let (since_ns, before) = *process.unfit_ns.get_or_insert((now_ns, lacks_only_backend));
            if before != lacks_only_backend {
                process.unfit_ns = Some((now_ns, lacks_only_backend));
                continue;
            }
            let (most_ns, what) = match lacks_only_backend {
                true => (NO_BACKEND_MAX_NS, "has no backend and keeps it"),
                false => (UNREADY_MAX_NS, "is not ready and keeps it"),
            };
            if now_ns - since_ns > most_ns && now_ns > process.again_ns {
                faults.push(format!("{} {what}", named(host)));
            }
        }
        faults.into_iter().for_each(|fault| self.fail(fault));
    }

    /// A holder that no IP packet reaches while another host could serve.
    fn judge_filters(&mut self) {
        let now_ns = self.now_ns;
        let is_quiet = !self.cut.iter().chain(&self.link_cut).flatten().any(|cut| *cut) && self.one_lost_in == u64::MAX;
        let able: Vec<_> = (0..self.hosts.len()).map(|host| self.is_able(host)).collect();
        let mut fault = None;
        for (host, it) in self.hosts.iter_mut().enumerate() {
            let Some(process) = &mut it.process else { continue };
            let is_awake = now_ns >= process.asleep_until_ns + GRACE_NS;
            let has_heir = able.iter().enumerate().any(|(other, is_able)| other != host && *is_able);
            let is_wrong = it.is_filtered && is_quiet && is_awake && has_heir && process.machine.holds();
            let is_damped = process.says.damped;
            match is_wrong && !is_damped {
                false => process.filtered_ns = None,
                true => {
                    let since_ns = *process.filtered_ns.get_or_insert(now_ns);
                    if now_ns - since_ns > FILTERED_MAX_NS {
                        fault = Some(format!("{} is behind a filter and keeps it", named(host)));
                    }
                }
            }
        }
        if let Some(fault) = fault {
            self.fail(fault);
        }
    }

    pub(super) fn judge(&mut self) {
        self.judge_at_once();
        self.judge_fitness();
        self.judge_filters();
        let now_ns = self.now_ns;
        let hosts = 0..self.hosts.len();
        let is_cut = self.cut.iter().chain(&self.link_cut).flatten().any(|cut| *cut);
        let can = hosts.clone().any(|host| self.is_able(host));
        // A host that is parted from others may wait for them, because it cannot know better.
        if hosts.clone().any(|host| self.serves(host)) || !can || is_cut {
            self.unserved_ns = None;
        } else {
            let (since_ns, dead) = *self.unserved_ns.get_or_insert((now_ns, false));
            let is_filtered = self.hosts.iter().any(|it| it.is_filtered);
            let most_ns = match dead {
                // A host behind a filter may take it from the dead, and its process may have begun anew meanwhile.
                _ if is_filtered => 2 * UNSERVED_MAX_NS,
                true => DEATH_MAX_NS,
                false => UNSERVED_MAX_NS,
            };
            if now_ns - since_ns > most_ns && now_ns - self.mishap_ns > most_ns {
                self.fail(format!("nobody has it for {} ms", (now_ns - since_ns) / MS));
            }
        }
        let have: Vec<_> =
            hosts.filter(|host| self.hosts[*host].is_up && self.hosts[*host].lease_ns.is_some()).collect();
        let awake = |host: usize| {
            self.hosts[host].process.as_ref().is_some_and(|process| now_ns >= process.asleep_until_ns + GRACE_NS)
        };
        let both = have.iter().enumerate().any(|(index, one)| {
            have[..index].iter().any(|other| {
                let hear = !self.cut[*one][*other] && !self.cut[*other][*one];
                let is_filtered = self.hosts[*one].is_filtered || self.hosts[*other].is_filtered;
                let link = !self.link_cut[*one][*other] && !self.link_cut[*other][*one] && !is_filtered;
                hear && link && awake(*one) && awake(*other)
            })
        });
        match both {
            false => self.both_ns = None,
            true => {
                let since_ns = *self.both_ns.get_or_insert(now_ns);
                let most_ns = if self.one_lost_in == u64::MAX { BOTH_MAX_NS } else { 2 * BOTH_MAX_NS };
                if now_ns - since_ns > most_ns {
                    self.fail(format!("two have it for {} ms", (now_ns - since_ns) / MS));
                }
            }
        }
    }
}
