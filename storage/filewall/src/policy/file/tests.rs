//! Tests of files.

use super::*;
use crate::policy::tests::try_chain;

#[test]
fn files_and_documents_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("20-b.yaml", "kind: read-only\n---\nkind: rate\nper: all\ncalls-per-s: 9\n");
    write("10-a.yml", "kind: statistics");
    write("30-c.yaml.off", "kind: nonsense");
    write("05-who.yaml", "kind: identities\nusers: {alice: {uid: 5}}");
    let chain = load(folder.path(), None).unwrap();
    let names: Vec<&str> = chain.entries().iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["statistics", "read-only", "rate"]);
    assert_eq!((chain.identities().uid("alice"), chain.epoch()), (Some(5), 1));
    assert_eq!(load(folder.path(), Some(&chain)).unwrap().epoch(), 2);
}

#[test]
fn questions_leave_alone_what_a_filewall_keeps_beside_its_policies() {
    let folder = tempfile::tempdir().unwrap();
    let text = "kind: identities\nusers: {bob: {uid: 7, roles: [user]}}\nroles: {user: {}}\n---\n\
                kind: handles\nkey-file: key\n---\n\
                kind: quota\nper: user\nbytes: 9\nperiod: day\nstate-file: quota.json\n---\n\
                kind: audit\nfile: audit.log\nops: [all]\noutcome: all\nwhen-full: lose\n---\n\
                kind: rbac\nstate-file: rbac.state\nlog-file: rbac.log\ninitial: [user]\n\
                rules: permit (principal in Role::\"user\", action, resource);\n";
    std::fs::write(folder.path().join("policy.yaml"), text).unwrap();
    let names = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(look(folder.path()).unwrap().entries().len(), 4);
    assert_eq!(names(), ["policy.yaml"], "nothing is made");
    let running = load(folder.path(), None).unwrap();
    let made = names();
    assert!(load(folder.path(), None).unwrap_err().to_string().contains("is used by another process"));
    let before = std::fs::metadata(folder.path().join("quota.json")).unwrap().modified().unwrap();
    assert_eq!(look(folder.path()).unwrap().entries().len(), running.entries().len());
    assert_eq!(names(), made);
    assert_eq!(std::fs::metadata(folder.path().join("quota.json")).unwrap().modified().unwrap(), before);
}

#[test]
fn what_is_wrong_is_named_with_file_and_document() {
    for (text, words) in [
        ("kind: statistics\n---\nkind: acess", "policy.yaml, document 2: 'acess' is no kind"),
        ("name: x", "'kind' is missing"),
        ("[1, 2]", "a policy is a mapping"),
        ("kind: [", "policy.yaml: "),
        ("kind: read-only\n---\nkind: read-only", "document 2: a second policy with the name 'read-only'"),
        ("kind: identities\n---\nkind: identities", "identities are given twice"),
        ("kind: read-only\npaths: [/a]\n---\nkind: handles\nkey-file: k", "put 'handles' first"),
        ("kind: statistics\nlevel: 3", "there is no field 'level'"),
        // What would let everything through is said, not guessed.
        ("", "it ends without a policy"),
        ("# nothing\n", "it ends without a policy"),
        ("kind: statistics\n---\n", "it ends without a policy"),
        ("kind: identities\n", "write 'kind: none'"),
        ("kind: none\n---\nkind: statistics\n", "'none' says that there is no policy"),
        ("kind: none\nwhy: x\n", "there is no field 'why'"),
        (
            "kind: handles\nkey-file: a\n---\nkind: handles\nname: b\nkey-file: b\n",
            "'handles' is there already",
        ),
        ("kind: module\nfile: m.wat\nops: [all]\nfuel: 18446744073709551615\n", "fuel 18446744073709551615"),
    ] {
        let error = try_chain(text, None).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    assert!(
        load(Path::new("/nowhere/policies"), None).unwrap_err().to_string().contains("/nowhere/policies")
    );
}

#[test]
fn errors_speak_of_documents_and_say_what_is_allowed() {
    let inner = |text: &str| format!("kind: access\ndefault: allow\nrules:\n- {text}");
    for (text, words) in [
        ("kind: rate\nper: all\ncalls-per-s: many".to_string(), &["calls-per-s", "'many'", "number"][..]),
        ("kind: rate\nper: all\ncalls-per-s: -1".to_string(), &["calls-per-s", "'-1'", "number"]),
        (
            "kind: rate\nper: everyone\ncalls-per-s: 1".to_string(),
            &["'per'", "'everyone' is none of", "client"],
        ),
        ("kind: rate\nper: [all]\ncalls-per-s: 1".to_string(), &["'per'"]),
        ("kind: rate\nper: all\nper: all\ncalls-per-s: 1".to_string(), &["'per' is given twice"]),
        (
            "kind: identities\nusers: {ann: {uid: 4294967296}}".to_string(),
            &["users.ann.uid", "from 0 to 4294967295"],
        ),
        ("kind: identities\nusers: {ann: {}}".to_string(), &["users.ann", "the field 'uid' is missing"]),
        ("kind: identities\nusers: {ann: 5}".to_string(), &["users.ann", "'5' is not fields with values"]),
        (
            "kind: identities\nusers: {ann: {uid: 5, roles: user}}".to_string(),
            &["users.ann.roles", "is not a list"],
        ),
        ("kind: identities\ngroups: {staff: x}".to_string(), &["groups.staff", "'x' is not a whole number"]),
        (inner("{deny: [all], users: [true]}"), &["rules[0].users[0]", "'true' is not a text", "quotes"]),
        (inner("{deny: [all], users: [7]}"), &["rules[0].users[0]", "'7' is not a text", "quotes"]),
        (inner("{deny: all}"), &["rules[0].deny", "'all' is not a list"]),
        (
            inner("{deny: [all], colour: red}"),
            &["'rules[0]'", "there is no field 'colour'; there are allow, deny"],
        ),
        (
            inner("{deny: [all]}").replace("allow\n", "open\n"),
            &["'default'", "'open' is none of allow or deny"],
        ),
        ("kind: access\nrules: []".to_string(), &["the field 'default' is missing"]),
        ("kind: statistics\nlevel: 3".to_string(), &["there is no field 'level'; it takes none"]),
        ("kind: true".to_string(), &["'kind: true' is no text"]),
    ] {
        let error = try_chain(&text, None).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{text}: no {word} in {error}");
        }
        for word in [
            "u16",
            "u32",
            "u64",
            "variant",
            "expected",
            "invalid",
            "DuplicateKey",
            "struct",
            "boolean",
            "sequence",
        ] {
            assert!(!error.contains(word), "{text}: {word} in {error}");
        }
    }
}

#[test]
fn words_that_are_booleans_elsewhere_are_names_here() {
    let text = "kind: identities\nusers: {y: {uid: 7, roles: [no, off]}, n: {uid: 8}}\nroles: {no: {}, off: {inherits: [yes]}, yes: {}}\n\
                groups: {on: 5}\n---\nkind: access\nname: n\ndefault: allow\nrules:\n- {deny: [all], users: [y], roles: [no]}\n";
    let chain = try_chain(text, None).unwrap();
    assert_eq!(chain.entries()[0].name, "n");
    assert_eq!((chain.identities().uid("y"), chain.identities().uid("n")), (Some(7), Some(8)));
    assert_eq!(chain.identities().gid("on"), Some(5));
    let roles: Vec<&str> = chain.identities().user(7).unwrap().1.iter().map(|role| &**role).collect();
    assert_eq!(roles, ["no", "off", "yes"]);
}

#[test]
fn no_policy_is_a_policy_that_says_so() {
    assert!(try_chain("kind: none\n", None).unwrap().entries().is_empty());
    let folder = tempfile::tempdir().unwrap();
    assert!(load(folder.path(), None).unwrap_err().to_string().contains("kind: none"));
    // Servers alone are a beginning, but not what policies may become.
    let servers = "kind: replication\nreplicas: [nfs://127.0.0.1/x]\n";
    let open = try_chain(servers, None).unwrap();
    try_chain(servers, Some(&open)).unwrap();
    let closed = try_chain(&format!("{servers}---\nkind: read-only\n"), None).unwrap();
    assert!(try_chain(servers, Some(&closed)).unwrap_err().to_string().contains("kind: none"));
    // What is no file is not waited for.
    let pipe = folder.path().join("p.yaml");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(load(folder.path(), None).unwrap_err().to_string().contains("it is no file"));
}

#[test]
fn fuzz_files() {
    bolero::check!().with_type::<String>().for_each(|text| {
        for text in [text.clone(), format!("kind: access\ndefault: allow\nrules:\n- {text}")] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("p.yaml");
            std::fs::write(&path, text).unwrap();
            let _ = load(&path, None);
        }
    });
}
