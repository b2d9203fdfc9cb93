//! Membership: actuators that join, join again with other facts, speak another protocol, or are forgotten.

use super::desk::{Desk, reference};
use super::tables::{DESIRED, LOADS, Member, STATUS, joined, label, name0, read};
use std::rc::Rc;
use weir_base::codec::encode;
use weir_model::Label;
use weir_model::event::{ActuatorFacts, Event, SPEAKS_TABLE};
use weir_model::identity::IdentityEvent;
use weir_model::session::PROTOCOL_MIN;
use weir_store::Rejection;

/// What actuators are counted under in [`super::tables::COUNTERS`]. Stable for ever.
const COUNTED: u8 = 9;

/// What came of an actuator that says what it is.
pub(super) enum Joined {
    /// The same facts again: nothing.
    Same,
    /// It is new.
    New,
    /// It had other facts.
    Changed(Rc<Member>),
}

/// An actuator says what it is.
pub(super) fn join(desk: &mut Desk<'_, '_>, facts: &ActuatorFacts) -> Result<Joined, Rejection> {
    let name = &facts.name;
    let before = desk.member(name);
    if let Some(before) = &before
        && before.facts.role != facts.role
    {
        let problem = "it joined before in another role (host, gateway, planes): remove it first";
        return Err(reference(format!("actuator/{name}"), problem));
    }
    if before.as_ref().is_some_and(|before| before.facts == *facts) {
        return Ok(Joined::Same);
    }
    if before.is_none() {
        let limit = desk.bounds.actuators_max;
        desk.count_up(COUNTED, b"", limit, || "actuators".to_string())?;
    }
    desk.put_member(Member { facts: facts.clone(), version: desk.version })?;
    Ok(before.map_or(Joined::New, Joined::Changed))
}

/// An actuator has another key. Whether it may, is decided elsewhere.
pub(super) fn rekey(desk: &mut Desk<'_, '_>, about: &IdentityEvent) -> Result<(), Rejection> {
    let IdentityEvent::Rotated(rotation) = about else { return Ok(()) };
    let name = rotation.whose.actuator().and_then(|name| Label::new(name).ok());
    let Some(member) = name.and_then(|name| desk.member(&name)) else { return Ok(()) };
    let facts = ActuatorFacts { identity: rotation.new, ..member.facts.clone() };
    desk.put_member(Member { facts, version: desk.version })
}

/// An actuator is forgotten, with all that it should have had. Returns what it was.
pub(super) fn remove(desk: &mut Desk<'_, '_>, name: &Label) -> Result<Option<Rc<Member>>, Rejection> {
    let Some(member) = desk.member(name) else { return Ok(None) };
    let prefix = name0(name.as_str());
    for (cell, _) in desk.view.store().scan(DESIRED, &prefix) {
        desk.view.delete(DESIRED, cell);
    }
    for (word, _) in desk.view.scan(SPEAKS_TABLE, &prefix) {
        desk.view.delete(SPEAKS_TABLE, &word);
    }
    for table in [LOADS, STATUS, SPEAKS_TABLE] {
        desk.view.delete(table, name.as_str().as_bytes());
    }
    desk.count_down(COUNTED, b"")?;
    desk.delete_member(name);
    Ok(Some(member))
}

/// A controller says which protocol an actuator speaks. Where one word does not count, it counts when `needed` say the same.
/// Returns whether another protocol is spoken now.
pub(super) fn speaks(
    desk: &mut Desk<'_, '_>,
    event: &Event,
    (name, protocol): (&Label, u32),
    needed: Option<usize>,
) -> Result<bool, Rejection> {
    let source = &event.source;
    if !source.is_controller() {
        return Err(reference(format!("actuator/{name}"), "only controllers say what it speaks"));
    }
    if desk.member(name).is_none() {
        return Err(reference(format!("actuator/{name}"), "it has not joined, or was forgotten"));
    }
    if let Some(needed) = needed {
        let word = joined(name0(name.as_str()), source.0.as_bytes());
        desk.view.put(SPEAKS_TABLE, &word, encode(&protocol))?;
        let words = desk.view.scan(SPEAKS_TABLE, &name0(name.as_str()));
        let same = words.iter().filter(|(_, word)| read::<u32>(SPEAKS_TABLE, word) == protocol).count();
        if same < needed {
            return Ok(false);
        }
        // Else words of who is gone would count one day.
        for (word, _) in words {
            desk.view.delete(SPEAKS_TABLE, &word);
        }
    }
    if spoken(desk, name) == protocol {
        return Ok(false);
    }
    desk.view.put(SPEAKS_TABLE, name.as_str().as_bytes(), encode(&protocol))?;
    Ok(true)
}

/// Which protocol an actuator speaks, as far as is known.
pub(crate) fn spoken(desk: &Desk<'_, '_>, name: &Label) -> u32 {
    let bytes = desk.view.get(SPEAKS_TABLE, name.as_str().as_bytes());
    bytes.map_or(PROTOCOL_MIN, |bytes| read(SPEAKS_TABLE, &bytes))
}

/// Everybody who speaks a protocol or a later one.
pub(crate) fn who_speak(desk: &Desk<'_, '_>, since: u32) -> Vec<Label> {
    let rows = desk.view.scan(SPEAKS_TABLE, b"");
    let reads = |value: &[u8]| read::<u32>(SPEAKS_TABLE, value) >= since;
    rows.iter().filter(|(key, value)| !key.contains(&0) && reads(value)).map(|(key, _)| label(key)).collect()
}
