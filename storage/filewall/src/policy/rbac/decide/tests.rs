//! What rules are read and refused, and what they come to. That Cedar evaluates as it says is Cedar's to test.

use super::*;
use crate::identity::{Identities, IdentitiesFile};
use crate::policy::rbac::context::Context as State;
use crate::policy::rbac::{RbacFile, sessions::Sessions};

const ROLES: &str = "
users: {alice: {uid: 7, roles: [user]}, bob: {uid: 8, roles: [developer]}}
roles: {user: {}, developer: {inherits: [user]}, admin: {inherits: [developer]}}
";
/// A Monday, noon, UTC.
const NOON_MS: u64 = 1_767_614_400_000;

fn assignment() -> Assignment {
    let identities: IdentitiesFile = weir_document::read(ROLES).unwrap();
    let file: RbacFile =
        weir_document::read("{rules: '', state-file: s, initial: [user, developer], timezone: UTC}").unwrap();
    Assignment::compile(&file, &Identities::compile(&identities).unwrap()).unwrap()
}

fn compiled(text: &str) -> Result<(Compiled, Zones), RulesError> {
    let mut zones = Zones::default();
    Compiled::compile(text, &assignment(), &mut zones).map(|compiled| (compiled, zones))
}

/// What holds for bob, a developer at 10.0.0.7, with a file of alice's in `/x`.
fn decision(text: &str) -> Decision {
    let (compiled, mut zones) = compiled(text).unwrap();
    let node = zones.add("/x").unwrap();
    let assignment = assignment();
    let folder = tempfile::tempdir().unwrap();
    let state = State::open(&folder.path().join("state")).unwrap();
    let caller = Principal { address: [10, 0, 0, 7].into(), ..Principal::nobody(8) };
    let session = Sessions::default().get(&caller, NOON_MS, &assignment, &state);
    let object = Object { uid: 7, gid: 7, mode: 0o600, folder: false, fsid: 1 };
    let roles = assignment.lattice.bits(["user"]);
    compiled.decide(&caller, &session, &object, (node, &zones), NOON_MS, (&assignment, roles))
}

/// Whether bob may WRITE it.
fn allowed(text: &str) -> bool {
    decision(text).allow & Op::Write.bit() != 0
}

#[test]
fn rules_speak_of_what_the_schema_has() {
    for (condition, expected) in [
        ("principal.name == \"bob\" && principal.uid == 8 && principal in Role::\"user\"", true),
        ("principal in Role::\"admin\"", false),
        ("principal.machine.isInRange(ip(\"10.0.0.0/24\")) && context.machine == principal.machine", true),
        ("context.hour == 12 && context.minute == 0 && context.weekday == 0", true),
        ("context.roles.containsAll([\"user\", \"developer\"])", true),
        ("resource.owner == \"alice\" && resource.ownerUid == 7 && resource.ownerRoles == [\"user\"]", true),
        ("resource is File && resource in Folder::\"/x\" && resource in Folder::\"/\"", true),
        ("resource in Folder::\"/y\"", false),
        ("resource.path like \"/x*\"", true),
        ("action in Action::\"changes\" && action != Action::\"READ\"", true),
        // An overflow: the rule does not count.
        ("9223372036854775807 + principal.uid > 0", false),
    ] {
        let text = format!("permit(principal, action, resource) when {{ {condition} }};");
        assert_eq!(allowed(&text), expected, "{condition}");
    }
}

#[test]
fn a_decision_has_all_operations_the_least_role_and_what_is_forbidden() {
    let decision = decision(
        "permit(principal in Role::\"user\", action in Action::\"looks\", resource);
         permit(principal in Role::\"developer\", action, resource);
         forbid(principal, action == Action::\"REMOVE\", resource);
         @permission(\"log\") permit(principal, action in Action::\"changes\", resource);
         @permission(\"alarm\") permit(principal, action == Action::\"REMOVE\", resource);",
    );
    let lattice = assignment().lattice;
    let role = |op: Op| usize::from(decision.role[op.index()]);
    assert_eq!(role(Op::Getattr), lattice.number("user").unwrap());
    assert_eq!(role(Op::Write), lattice.number("developer").unwrap());
    assert_eq!(decision.forbid, Op::Remove.bit());
    assert_eq!(decision.allow, crate::wire::nfs3::ALL_OPS & !Op::Remove.bit());
    assert_eq!((decision.log, decision.alarm), (crate::wire::nfs3::CHANGES, Op::Remove.bit()));
    assert_eq!(decision.role[Op::Remove.index()], NO_ROLE);
}

#[test]
fn only_rules_that_speak_of_the_time_change_with_it() {
    let timed = |text: &str| compiled(text).unwrap().0.timed;
    assert!(!timed("permit(principal, action, resource) when { principal.uid == 1 };"));
    assert!(timed("permit(principal, action, resource) when { context.hour > 8 };"));
    assert!(timed("permit(principal, action, resource) when { context[\"we\\u{65}kday\"] > 8 };"));
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    for (text, reasons) in [
        ("\n\npermit(principal, action, resource)", &["line 3", "unexpected end"][..]),
        ("permit(principal, resource);", &["line 1"]),
        ("\nallow(principal, action, resource);", &["line 2", "allow"]),
        ("permit(principal == ?principal, action, resource);", &["templates"]),
        ("\npermit(principal, action, resource) when { resource.secret };", &["line 2", "secret"]),
        ("\n\npermit(principal, action, resource) when { context.hour < \"1\" };", &["line 3", "Long"]),
        ("permit(principal is Robot, action, resource);", &["Robot"]),
        (
            "// remark\npermit(principal in Role::\"root\", action, resource);",
            &["line 2", "none of the roles"],
        ),
        ("permit(principal, action == Action::\"TWIRL\", resource);", &["no operation and no group"]),
        ("@permission(\"lag\") permit(principal, action, resource);", &["@permission is one of"]),
    ] {
        let error = compiled(text).unwrap_err().to_string();
        assert!(reasons.iter().all(|reason| error.contains(reason)), "{text}: {error}");
    }
}

#[test]
fn texts_that_nest_without_end_are_refused_or_read() {
    let rule = |condition: String| format!("permit(principal, action, resource) when {{ {condition} }};");
    let deep = rule(format!("{}true{}", "(".repeat(5000), ")".repeat(5000)));
    assert!(compiled(&deep).unwrap_err().to_string().contains("nested"));
    for part in ["true && ", "true || ", "!", "-", "1 + ", "if true then true else ", "principal in "] {
        let long = compiled(&rule(format!("{}true", part.repeat(20_000)))).unwrap_err().to_string();
        assert!(long.contains("words and signs"), "{part}: {long}");
        // As long as may be: whatever comes of it, it comes back.
        // A word counts once, each sign of an operator by itself.
        let count = |word: &str| if word.starts_with(char::is_alphabetic) { 1 } else { word.len() };
        let each: usize = part.split_whitespace().map(count).sum();
        let _ = compiled(&rule(format!("{}true", part.repeat((WORDS_MAX - 40) / each))));
    }
    assert!(compiled(&rule(format!("principal{}", ".name".repeat(20_000)))).is_err());
    let _ = compiled(&rule(format!("principal{}", ".name".repeat((WORDS_MAX - 40) / 2))));
    assert!(
        compiled(&"permit(principal, action, resource);".repeat(RULES_MAX + 1))
            .unwrap_err()
            .to_string()
            .contains("rules")
    );
}

#[test]
fn no_text_breaks_the_reader_or_a_decision() {
    bolero::check!().with_type::<String>().for_each(|text| {
        let _ = compiled(text);
        // Inside a rule, most texts get further.
        let inside = format!("permit(principal, action, resource) when {{ {text} }};");
        if compiled(&inside).is_ok() {
            allowed(&inside);
        }
    });
}
