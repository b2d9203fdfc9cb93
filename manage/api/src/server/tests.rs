use super::*;

#[test]
fn every_documented_path_has_a_route() {
    let document = openapi();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 20, "{paths:?}");
    for path in paths.keys() {
        assert_ne!(requests::route_of(path), "other", "{path}");
    }
}

#[test]
fn the_table_of_bounds_names_what_is_in_the_document() {
    assert_eq!(bounds::stale(&mut openapi()), Vec::<String>::new());
}

#[test]
fn any_body_is_counted_and_compared_without_harm() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let _ = crate::within::count(bytes);
        for schema in ["ApplyRequest", "AddDomain", "no such schema"] {
            let _ = schemas().check(schema, bytes);
        }
    });
}
