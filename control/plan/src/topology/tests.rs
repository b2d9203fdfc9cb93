use super::*;

#[test]
fn links_and_capacities_are_read() {
    let network = parse("# a ring\na b 1000\nb c # no capacity\n\nc a 5\n").unwrap();
    let names: Vec<String> = network.switches().map(|switch| network.name(switch).to_string()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let [a, b, c] = [0, 1, 2].map(Switch);
    assert_eq!(network.link(b, a).unwrap().capacity_kbps, Some(1000));
    assert_eq!(network.link(b, c).unwrap().capacity_kbps, None);
    assert_eq!(network.neighbours(a).collect::<Vec<_>>(), [b, c]);
    assert_eq!(network.find("c"), Some(c));
}

#[test]
fn a_wrong_line_is_named() {
    for wrong in ["a", "a b c", "a b 1 2", "a a"] {
        let error = parse(&format!("x y\n{wrong}\n")).unwrap_err();
        assert_eq!(error, TopologyError::Line { line: 2, text: wrong.into() });
    }
}

#[test]
fn any_text_is_a_topology_or_an_error() {
    bolero::check!().with_iterations(5_000).for_each(|bytes: &[u8]| {
        if let Ok(network) = parse(&String::from_utf8_lossy(bytes)) {
            assert!(network.links().all(|(link, _)| network.has(link.from) && network.has(link.to)));
        }
    });
}
