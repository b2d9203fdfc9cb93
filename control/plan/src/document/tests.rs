use super::*;
use crate::{CheckSettings, Mode, Settings, check, plan};

fn policy(rules: &[(&str, &str)]) -> PolicyDocument {
    let own = |(at, to): &(&str, &str)| (at.to_string(), to.to_string());
    PolicyDocument { rules: rules.iter().map(own).collect(), ..PolicyDocument::default() }
}

fn document() -> Document {
    let flow = FlowDocument {
        sources: [("s1".to_string(), 5)].into(),
        old: Some(policy(&[("s1", "s3"), ("s3", "deliver")])),
        new: Some(policy(&[("s1", "s2"), ("s2", "s3"), ("s3", "deliver")])),
        version: 0,
    };
    Document {
        links: vec!["s1 s2 10".into(), "s2 s3 10".into(), "s1 s3".into()],
        failed: vec!["s1 s3".into()],
        flows: [("web".to_string(), flow)].into(),
    }
}

#[test]
fn a_document_becomes_a_change_that_can_be_planned() {
    let (change, names) = document().change().unwrap();
    assert_eq!(names, ["web"]);
    let plan = plan(&change, &Settings::default()).unwrap();
    let text = plan.explain(&change.network, &|flow| names[flow.0 as usize].clone());
    let wanted = "flow web: rules are replaced in order\n\
                  2 steps, at most 2 one after the other, 0 waits for packets to drain\n   \
                  1  s2: forward to s3 web\n   \
                  2  s1: forward to s2 web\n        \
                  after 1: a switch behind it on the new way has no rule before, packets would be lost\n";
    assert_eq!(text, wanted);
}

#[test]
fn what_is_wrong_is_named() {
    let wrong = |change: &dyn Fn(&mut Document)| {
        let mut document = document();
        change(&mut document);
        document.change().unwrap_err().to_string()
    };
    let of =
        |flow: &'static str| move |document: &mut Document| document.flows.get_mut(flow).unwrap().old = None;
    assert_eq!(
        wrong(&|d| d.links.push("s1".into())),
        "links: line 4: 's1' is not 'switch switch [capacity in kbit/s]'"
    );
    assert_eq!(wrong(&|d| d.failed = vec!["s1 x".into()]), "failed: 'x' is no switch of any link");
    assert_eq!(wrong(&|d| d.failed = vec!["s1".into()]), "failed: 's1' is not 'switch switch'");
    let strange = |d: &mut Document| d.flows.get_mut("web").unwrap().new = Some(policy(&[("s1", "s9")]));
    assert_eq!(wrong(&strange), "flow web: 's9' is no switch of any link");
    let neither = |d: &mut Document| {
        of("web")(d);
        d.flows.get_mut("web").unwrap().new = None;
    };
    assert_eq!(wrong(&neither), "flow web: it has neither 'old' nor 'new'");
}

/// The file that `docs/operate/plan.md` shows.
#[test]
fn the_documented_example_has_a_safe_plan_and_needs_its_order() {
    let text = include_str!("../../../../docs/operate/plan-example.yaml");
    let document: Document = serde_saphyr::from_str(text).unwrap();
    let (change, names) = document.change().unwrap();
    assert_eq!(names, ["web"]);
    let plan = plan(&change, &Settings::default()).unwrap();
    assert!(check(&change, &plan, &CheckSettings::default()).unwrap().is_complete());
    assert!(check(&change, &plan.with_mode(Mode::None), &CheckSettings::default()).is_err());
}

#[test]
fn any_bytes_are_a_change_or_an_error() {
    bolero::check!().with_iterations(2_000).for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(document) = serde_saphyr::from_str::<Document>(&text) {
            let _ = document.change().map(|(change, _)| plan(&change, &Settings::default()));
        }
    });
}
