//! The slot of this instance: a number that no other instance of the fleet has, also while some hosts have new files and some old.

use std::net::IpAddr;

use super::{Facts, SetupRefusal, SetupRequest};
use crate::translate::ForeignFile;

/// The position in `--hosts`, to whose end new hosts are added: the position among sorted addresses shifts with each new host,
/// and then a host with its old file has the slot of another one with its new file. `all` are the instances' addresses, sorted.
pub(super) fn slot(request: &SetupRequest, own: IpAddr, all: &[IpAddr], facts: &mut Facts) -> Result<u8, SetupRefusal> {
    let has_order = !request.hosts.is_empty();
    let mut order: Vec<IpAddr> = Vec::new();
    for ip in if has_order { &request.hosts } else { all } {
        if !order.contains(ip) {
            order.push(*ip);
        }
    }
    let position = order.iter().position(|ip| *ip == own).unwrap_or_default() as u8;
    let by_position = match has_order {
        true => "the position in --hosts, from 0: add further hosts at its end",
        false => "the position of the own address among those of all instances, from 0",
    };
    let before = request.before.as_ref().and_then(|file| Some((slot_of(file)?, &file.name)));
    let (slot, place) = match (request.slot, before) {
        (Some(slot), _) => (slot, "--slot".to_owned()),
        (None, Some((before, file))) if before != position && has_order => {
            return Err(SetupRefusal::SlotMoved { file: file.clone(), before, own, position });
        }
        (None, Some((before, file))) if before != position => {
            (before, format!("{file} has it, so it stays: give a new host a slot that no other has, by --slot"))
        }
        (None, _) => (position, by_position.to_owned()),
    };
    facts.add("slot", slot.to_string(), place);
    Ok(slot)
}

fn slot_of(file: &ForeignFile) -> Option<u8> {
    let slot = file.text.parse::<toml::Table>().ok()?.get("instance")?.get("slot")?.as_integer()?;
    slot.try_into().ok()
}
