//! Plans that are wrong. What works is shown with real servers, in the scenarios of `weir`.

use super::*;

#[test]
fn a_wrong_plan_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let server: Server = "nfs://127.0.0.1/export".parse().unwrap();
    let plan = |path: &str| Plan {
        replicas: Vec::new(),
        redirects: vec![(path.to_string(), server.clone())],
        state_file: folder.path().join("names"),
        ..Plan::default()
    };
    for path in ["projects", "/", ""] {
        let error = Router::start(&server, &plan(path)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("is no folder below the export"), "{error}");
    }
    let many = Plan { replicas: vec![server.clone(); REPLICAS_MAX], ..plan("/x") };
    assert!(Router::start(&server, &many).is_err());
    let (router, _) = Router::start(&server, &plan("/a/b")).unwrap();
    router.stop();
    assert_eq!((router.members().len(), router.redirects.len()), (2, 1));
    // The folder of the redirection is below the export; what it leads to is not.
    let ((folder, _), group) = router.redirects.iter().next().unwrap();
    assert_eq!((router.group_of(*folder), router.group_of(Router::root(*group))), (Some(0), Some(1)));
}
