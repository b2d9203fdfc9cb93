//! The language: what is read, what is refused, and what rules say.

use super::*;

fn entity(kind: &str, id: &str, within: &[(&str, &str)], attributes: &[(&str, Value)]) -> Entity {
    Entity {
        uid: Uid::new(kind, id),
        within: within.iter().map(|(kind, id)| Uid::new(kind, id)).collect(),
        attributes: attributes.iter().map(|(name, value)| ((*name).into(), value.clone())).collect(),
    }
}

/// Whether alice, a user, may WRITE bob's file from 10.0.0.7 at 18 o'clock.
fn allowed(text: &str) -> bool {
    let rules: Rules = text.parse().unwrap();
    let principal = entity(
        "User",
        "alice",
        &[("Role", "user")],
        &[("name", Value::text("alice")), ("uid", Value::Long(7))],
    );
    let action = entity("Action", "WRITE", &[("Action", "changes")], &[]);
    let resource = entity(
        "File",
        "/x/report.txt",
        &[("Folder", "/"), ("Folder", "/x")],
        &[("owner", Value::text("bob")), ("ownerRoles", Value::texts(["user", "developer"]))],
    );
    let context = BTreeMap::from([
        ("hour".into(), Value::Long(18)),
        ("machine".into(), Value::Address("10.0.0.7/32".parse().unwrap())),
    ]);
    let request = Request { principal: &principal, action: &action, resource: &resource, context: &context };
    rules.decide(&request, |_| true).is_ok()
}

/// Whether a condition holds.
fn holds(condition: &str) -> bool {
    allowed(&format!("permit(principal, action, resource) when {{ {condition} }};"))
}

#[test]
fn scopes_choose_principals_actions_and_resources() {
    for (text, expected) in [
        ("permit(principal, action, resource);", true),
        ("", false),
        ("permit(principal == User::\"alice\", action, resource);", true),
        ("permit(principal == User::\"bob\", action, resource);", false),
        ("permit(principal in Role::\"user\", action, resource);", true),
        ("permit(principal in Role::\"admin\", action, resource);", false),
        ("permit(principal is User in Role::\"user\", action == Action::\"WRITE\", resource is File);", true),
        ("permit(principal, action in [Action::\"READ\", Action::\"changes\"], resource);", true),
        ("permit(principal, action in [], resource);", false),
        ("permit(principal, action, resource in Folder::\"/x\");", true),
        ("permit(principal, action, resource in Folder::\"/y\");", false),
        ("permit(principal, action, resource is Folder);", false),
    ] {
        assert_eq!(allowed(text), expected, "{text}");
    }
}

#[test]
fn what_forbids_wins_and_what_fails_does_not_count() {
    let permit = "permit(principal, action, resource);";
    assert!(!allowed(&format!("{permit} forbid(principal, action, resource) when {{ context.hour > 17 }};")));
    assert!(allowed(&format!(
        "{permit} forbid(principal, action, resource) unless {{ context.hour > 17 }};"
    )));
    // Neither attribute is there, and these types do not go together: the rules are as if they were not written.
    assert!(allowed(&format!("{permit} forbid(principal, action, resource) when {{ resource.secret }};")));
    assert!(allowed(&format!("{permit} forbid(principal, action, resource) when {{ principal.name < 3 }};")));
    assert!(allowed(&format!("{permit} forbid(principal, action, resource) when {{ principal.name }};")));
    assert!(!allowed(
        "permit(principal, action, resource) when { 9223372036854775807 + principal.uid > 0 };"
    ));
    let text =
        format!("@id(\"a\") {permit} // a remark\n forbid(principal, action, resource) when {{ true }};");
    let rules: Rules = text.parse().unwrap();
    assert_eq!((rules.0[0].annotations["id"].as_str(), rules.0[1].line), ("a", 2));
}

#[test]
fn operators_are_those_of_cedar() {
    for (condition, expected) in [
        ("true || resource.missing", true),
        ("false && resource.missing", false),
        ("resource.missing || true", false),
        ("1 + 2 * 3 == 7 && -2 - -5 == 3 && !(1 > 2)", true),
        ("if principal.uid == 7 then true else resource.missing", true),
        ("resource has owner && !(resource has secret) && resource[\"owner\"] == \"bob\"", true),
        ("resource.ownerRoles.contains(\"developer\")", true),
        ("resource.ownerRoles.containsAll([\"user\", \"admin\"])", false),
        ("resource.ownerRoles.containsAny([\"user\", \"admin\"]) && ![1].isEmpty() && [].isEmpty()", true),
        ("[1, 2, 2] == [2, 1]", true),
        ("{a: 1, \"b c\": [2]} == {\"b c\": [2], a: 1} && {a: 1}.a == 1 && {a: 1} has a", true),
        ("\"report.txt\" like \"*.txt\" && \"a*b\" like \"a\\*b\" && !(\"axb\" like \"a\\*b\")", true),
        ("\"aaab\" like \"*a*ab\" && !(\"abc\" like \"*b\")", true),
        (
            "principal in Role::\"user\" && principal in [Role::\"x\", Role::\"user\"] && principal is User",
            true,
        ),
        ("principal is User in Role::\"admin\"", false),
        ("resource in Folder::\"/x\" && action in Action::\"changes\" && action == Action::\"WRITE\"", true),
        ("context.machine.isInRange(ip(\"10.0.0.0/24\")) && context.machine.isIpv4()", true),
        ("context.machine.isInRange(ip(\"10.0.1.0/24\"))", false),
        ("ip(\"127.0.0.1\").isLoopback() && ip(\"::1\").isIpv6() && ip(\"nonsense\").isIpv4()", false),
        ("\"\\u{e9}\\x41\\n\" == \"\\u{E9}A\\n\"", true),
        ("1 == \"1\"", false),
        ("1 < \"1\"", false),
    ] {
        assert_eq!(holds(condition), expected, "{condition}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    for (text, reason) in [
        ("permit(principal, action, resource)", "';' is missing at the end"),
        ("permit(principal, resource);", "'action' is missing before 'resource'"),
        ("\nallow(principal, action, resource);", "line 2"),
        ("permit(principal == ?principal, action, resource);", "templates"),
        ("permit(principal, action, resource) when { decimal(\"1.0\") };", "'decimal(…)' is not served"),
        ("permit(principal, action, resource) when { foo };", "'foo' is neither"),
        ("permit(principal, action, resource) when { \"a };", "does not end"),
        ("permit(principal, action, resource) when { 99999999999999999999 > 1 };", "too large"),
        ("permit(principal, action, resource) when { [1].contains() };", "takes 1 arguments"),
        ("permit(principal, action, resource) when { § };", "no sign"),
    ] {
        let error = text.parse::<Rules>().unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }
    let deep = format!(
        "permit(principal, action, resource) when {{ {}true{} }};",
        "(".repeat(5000),
        ")".repeat(5000)
    );
    assert!(deep.parse::<Rules>().unwrap_err().contains("nested"));
    let long = format!("permit(principal, action, resource) when {{ true{} }};", " && true".repeat(5000));
    assert!(long.parse::<Rules>().unwrap_err().contains("in a row"));
}

#[test]
fn no_text_breaks_the_reader_or_the_evaluation() {
    bolero::check!().with_type::<String>().for_each(|text| {
        if let Ok(rules) = text.parse::<Rules>() {
            assert!(rules.0.len() <= RULES_MAX);
        }
        // Inside a rule, most texts get further.
        if format!("permit(principal, action, resource) when {{ {text} }};").parse::<Rules>().is_ok() {
            holds(text);
        }
    });
}
