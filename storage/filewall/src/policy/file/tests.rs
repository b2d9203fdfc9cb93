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
        ("kind: statistics\nlevel: 3", "unknown field"),
        // What would let everything through is said, not guessed.
        ("", "it ends without a policy"),
        ("# nothing\n", "it ends without a policy"),
        ("kind: statistics\n---\n", "it ends without a policy"),
        ("kind: identities\n", "write 'kind: none'"),
        ("kind: none\n---\nkind: statistics\n", "'none' says that there is no policy"),
        ("kind: none\nwhy: x\n", "unknown field"),
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
