//! Tests of identities.

use super::*;

fn file(text: &str) -> IdentitiesFile {
    weir_document::read(text).unwrap()
}

const TEXT: &str = "
users:
  alice: {uid: 1001, roles: [user]}
  root: {uid: 0, roles: [admin]}
groups: {staff: 50}
roles:
  user: {}
  developer: {inherits: [user]}
  admin: {inherits: [developer]}
";

#[test]
fn roles_bring_those_that_they_inherit() {
    let identities = Identities::compile(&file(TEXT)).unwrap();
    let roles = |uid| {
        identities.user(uid).map(|(_, roles)| roles.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(roles(1001), Some(vec!["user".to_string()]));
    assert_eq!(roles(0), Some(vec!["admin".to_string(), "developer".to_string(), "user".to_string()]));
    assert_eq!(roles(7), None);
    assert_eq!(
        (identities.uid("alice"), identities.uid("77"), identities.uid("bob")),
        (Some(1001), Some(77), None)
    );
}

#[test]
fn circles_of_roles_are_refused() {
    let wrong = |roles: &str| Identities::compile(&file(&format!("roles: {roles}"))).unwrap_err().to_string();
    let two = wrong("{a: {inherits: [b]}, b: {inherits: [a]}, c: {inherits: [a]}}");
    assert!(two.contains("role 'a' inherits itself, by b:"), "{two}");
    let own = wrong("{z: {}, self: {inherits: [self, z]}}");
    assert!(own.contains("role 'self' inherits itself:"), "{own}");
    let three = wrong("{a: {inherits: [b]}, b: {inherits: [c]}, c: {inherits: [a]}}");
    assert!(three.contains("role 'a' inherits itself, by b and c:"), "{three}");
    // Two ways to one role are no circle.
    let diamond = "roles: {a: {inherits: [b, c]}, b: {inherits: [d]}, c: {inherits: [d]}, d: {}}";
    assert!(Identities::compile(&file(diamond)).is_ok());
}

#[test]
fn what_is_wrong_is_named() {
    let wrong = |text| Identities::compile(&file(text)).unwrap_err().to_string();
    assert!(wrong("users: {x: {uid: 1, roles: [ghost]}}").contains("'ghost'"));
    assert!(wrong("users: {x: {uid: 1}, y: {uid: 1}}").contains("same uid 1"));
}

#[test]
fn a_principal_is_a_user_on_a_machine_and_keeps_its_counters() {
    let identities = Identities::compile(&file(TEXT)).unwrap();
    let principals = Principals::default();
    let get = |last: u8| principals.get(&identities, [10, 0, 0, last].into(), 1001, 50, &[60]);
    let (here, there) = (get(1), get(2));
    assert_eq!((here.label().as_str(), here.id == get(1).id, here.id == there.id), ("alice", true, false));
    assert!(here.in_group(50) && here.in_group(60) && !here.in_group(61));
    here.usage.call(crate::wire::nfs3::Op::Read);
    let later = Principals::after(&principals).get(&identities, [10, 0, 0, 1].into(), 1001, 50, &[60]);
    assert_ne!(later.id, here.id);
    assert_eq!(later.usage.snapshot().ops["READ"].calls, 1);
}

#[test]
fn duties_that_are_kept_separate_do_not_meet_in_one_user() {
    let text = |roles: &str| {
        format!(
            "separate: [[developer, auditor]]\nroles: {{developer: {{}}, auditor: {{}}, chief: {{inherits: [auditor]}}}}\n\
             users: {{ann: {{uid: 1, roles: {roles}}}}}"
        )
    };
    assert!(Identities::compile(&file(&text("[developer]"))).is_ok());
    assert!(Identities::compile(&file(&text("[chief, auditor]"))).is_ok());
    for roles in ["[developer, auditor]", "[developer, chief]"] {
        let wrong = Identities::compile(&file(&text(roles))).unwrap_err().to_string();
        assert!(wrong.contains("user ann has the roles auditor and developer"), "{wrong}");
    }
    let unknown = "separate: [[developer, nobody]]\nroles: {developer: {}}";
    assert!(Identities::compile(&file(unknown)).unwrap_err().to_string().contains("'nobody'"));
}
