//! `weir explain`: what may be written in a document, field by field. All of it comes from the types: texts
//! and forms from the API's own document, defaults from reading the smallest document of a kind. Of a plane's kind, what its
//! vocabulary says.

use super::output::{self, Format};
use super::{Failure, Output};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;
use weir_api::any::{kinds, network_kind, parse_kind};
use weir_model::resource::{Kind, Resource};
use weir_planes::{ALL, of_kind};

/// The schema of what planes have.
const OF_PLANE: &str = "PlaneResource";
/// The head of a table of fields.
const TABLE: &str = "| field | form | default | |\n|---|---|---|---|\n";

#[derive(Debug, Args)]
pub struct Explain {
    /// A kind, or a field of it, such as `endpoint` or `subnet.dhcp`; nothing for all kinds
    #[arg(value_name = "KIND[.FIELD]")]
    what: Option<String>,
    /// Print all kinds as a page of documentation
    #[arg(long, conflicts_with = "what")]
    markdown: bool,
    #[command(flatten)]
    output: Output,
}

/// One field as it is shown.
struct Field {
    name: String,
    form: String,
    default: Option<String>,
    required: bool,
    text: String,
    /// Name of the schema behind it, where it has fields or forms of its own.
    inner: Option<String>,
}

impl Explain {
    /// Prints it. Needs no controller.
    ///
    /// # Errors
    /// [`Failure::Input`] for a kind or a field that does not exist.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let schemas = Schemas::load()?;
        if self.output.output != Format::Table {
            let schema = schemas.schema(self.what.as_deref())?;
            output::print(self.output.output, &schema, || ())?;
            return Ok(ExitCode::SUCCESS);
        }
        let text = match self.what {
            _ if self.markdown => schemas.markdown()?,
            None => schemas.kinds(),
            Some(what) => schemas.explain(&what)?,
        };
        put!("{text}");
        Ok(ExitCode::SUCCESS)
    }
}

/// The schemas of the API's document.
pub(super) struct Schemas(Value);

impl Schemas {
    pub(super) fn load() -> Result<Schemas, Failure> {
        let mut document = serde_json::to_value(weir_api::server::openapi())
            .map_err(|error| Failure::Input(error.to_string()))?;
        Ok(Schemas(document["components"]["schemas"].take()))
    }

    /// The JSON schema of a kind, or of all by their names; fields are in it.
    fn schema(&self, what: Option<&str>) -> Result<Value, Failure> {
        // What a plane takes in a specification is its own; the form of what has one is the same for all.
        let of = |kind: &str| self.0[network_kind(kind).map_or(OF_PLANE, schema_of)].clone();
        match what {
            None => Ok(kinds().map(|kind| (kind.to_owned(), of(kind))).collect()),
            Some(what) => Ok(of(parse_kind(what.split('.').next().unwrap_or_default())?.as_str())),
        }
    }

    fn kinds(&self) -> String {
        let mut out = String::new();
        for kind in Kind::ALL {
            let _ = writeln!(out, "{:<16}{}", kind.as_str(), self.text(schema_of(kind)));
        }
        for plane in ALL {
            let _ = writeln!(out, "{:<16}What a plane of a host is to have: {}.", plane.kind, plane.about);
        }
        out + "\n'weir explain KIND' lists the fields of one, 'weir explain KIND.FIELD' those of a field.\n"
    }

    pub(super) fn explain(&self, what: &str) -> Result<String, Failure> {
        let mut path = what.split('.');
        let named = parse_kind(path.next().unwrap_or_default())?;
        if let Some(plane) = of_kind(ALL, named.as_str()) {
            return self.explain_plane(plane, &path.collect::<Vec<_>>().join("."));
        }
        let kind: Kind = named.as_str().parse()?;
        let mut schema = schema_of(kind).to_string();
        let mut defaults = smallest(kind)?;
        let mut shown = kind.to_string();
        for name in path {
            let fields = self.fields(&schema, &defaults);
            let known = fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", ");
            let Some(field) = fields.into_iter().find(|field| field.name == name) else {
                return Err(Failure::Input(format!("{shown} has no field '{name}': it has {known}")));
            };
            let Some(inner) = field.inner else {
                let mut out = String::new();
                write_fields(&mut out, std::slice::from_ref(&field));
                return Ok(out);
            };
            defaults = defaults[name].take();
            schema = inner;
            shown = format!("{shown}.{name}");
        }
        let mut out = format!("{shown}: {}\n\n", self.text(&schema));
        write_fields(&mut out, &self.fields(&schema, &defaults));
        Ok(out)
    }

    /// The fields of a plane's kind: those of all, and those of its specification.
    fn fields_of(&self, plane: &weir_planes::Kind) -> Vec<Field> {
        let common = self.fields(OF_PLANE, &Value::Null).into_iter().filter(|field| field.name != "kind");
        common.chain(fields_of_spec(plane)).collect()
    }

    fn explain_plane(&self, plane: &weir_planes::Kind, path: &str) -> Result<String, Failure> {
        let is_inside = |field: &Field| {
            let rest = field.name.strip_prefix(path);
            path.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let (shown, others): (Vec<Field>, Vec<Field>) =
            self.fields_of(plane).into_iter().partition(is_inside);
        if shown.is_empty() {
            let known: Vec<&str> = others.iter().map(|field| field.name.as_str()).collect();
            let text = format!("{} has no field '{path}': it has {}", plane.kind, known.join(", "));
            return Err(Failure::Input(text));
        }
        let mut out = format!("{}: {}\n\n", plane.kind, about(plane));
        write_fields(&mut out, &shown);
        Ok(out)
    }

    pub(super) fn markdown(&self) -> Result<String, Failure> {
        let mut out = String::from(
            "# Resources\nWhat may be written in the files of `weir apply`. This page is what `weir explain --markdown` prints.\n\n\
             A file holds one or more YAML or JSON documents. Each has a `kind` and the fields below; an unknown field is an\n\
             error. Names are DNS labels: `a-z`, `0-9` and `-`, at most 63 characters.\n",
        );
        for kind in Kind::ALL {
            let schema = schema_of(kind);
            let _ = write!(out, "\n## {kind}\n{}\n\n", self.text(schema));
            self.markdown_fields(&mut out, schema, &smallest(kind)?, "");
        }
        // One that says nothing of its fields has no table.
        for plane in ALL.iter().filter(|plane| !plane.fields.is_empty()) {
            let _ = write!(out, "\n## {}\n{}\n\n", plane.kind, about(plane));
            out.push_str(TABLE);
            self.fields_of(plane).iter().for_each(|field| markdown_row(&mut out, field, ""));
        }
        Ok(out)
    }

    fn markdown_fields(&self, out: &mut String, schema: &str, defaults: &Value, prefix: &str) {
        if prefix.is_empty() {
            out.push_str(TABLE);
        }
        for field in self.fields(schema, defaults) {
            markdown_row(out, &field, prefix);
            let name = format!("{prefix}{}", field.name);
            if let Some(inner) = &field.inner {
                self.markdown_fields(out, inner, &defaults[&field.name], &format!("{name}."));
            }
        }
    }

    fn text(&self, schema: &str) -> String {
        self.0[schema]["description"].as_str().unwrap_or_default().replace('\n', " ")
    }

    /// The fields of a schema, or its forms when it is one of several.
    fn fields(&self, schema: &str, defaults: &Value) -> Vec<Field> {
        let schema = &self.0[schema];
        if let Some(forms) = schema["oneOf"].as_array() {
            return forms.iter().flat_map(|form| self.properties(form, &Value::Null, false)).collect();
        }
        self.properties(schema, defaults, true)
    }

    fn properties(&self, schema: &Value, defaults: &Value, with_required: bool) -> Vec<Field> {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut fields: Vec<Field> = schema["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, property)| self.field(name, property, &required, &defaults[name], with_required))
            .collect();
        // Required ones first; within each group as the document has them.
        fields.sort_by_key(|field| !field.required);
        fields
    }

    fn field(
        &self,
        name: &str,
        property: &Value,
        required: &[&str],
        default: &Value,
        with_required: bool,
    ) -> Field {
        let (form, inner) = self.form(property);
        let text = property["description"]
            .as_str()
            .or_else(|| property["oneOf"][0]["description"].as_str())
            .unwrap_or_default();
        Field {
            name: name.to_string(),
            form,
            default: default_text(default),
            required: with_required && required.contains(&name),
            text: text.replace('\n', " "),
            inner,
        }
    }

    /// How a value is written, and the schema to look into.
    fn form(&self, property: &Value) -> (String, Option<String>) {
        if let Some(reference) = property["$ref"].as_str() {
            return self.named(reference);
        }
        if let Some(reference) = property["oneOf"][0]["$ref"].as_str() {
            return self.named(reference);
        }
        let kind = match &property["type"] {
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
            other => other.as_str(),
        };
        match kind {
            Some("array") => {
                let (item, inner) = self.form(&property["items"]);
                (format!("list of {item}"), inner)
            }
            Some("integer") => ("number".to_string(), None),
            Some("boolean") => ("true | false".to_string(), None),
            Some("string") => ("text".to_string(), None),
            Some("object") => ("fields".to_string(), None),
            other => (other.unwrap_or("value").to_string(), None),
        }
    }

    fn named(&self, reference: &str) -> (String, Option<String>) {
        let name = reference.rsplit('/').next().unwrap_or_default();
        let schema = &self.0[name];
        let words = |schema: &Value| -> Vec<String> {
            schema["enum"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(String::from)
                .collect()
        };
        let plain = words(schema);
        if !plain.is_empty() {
            return (plain.join(" | "), None);
        }
        let Some(forms) = schema["oneOf"].as_array() else {
            return ("fields".to_string(), Some(name.to_string()));
        };
        let forms: Vec<String> = forms
            .iter()
            .flat_map(|form| match form["properties"].as_object() {
                Some(properties) => properties.keys().map(|key| format!("{{{key}: …}}")).collect(),
                None => words(form),
            })
            .collect();
        (forms.join(" | "), Some(name.to_string()))
    }
}

/// What a plane's kind is, in a line.
fn about(plane: &weir_planes::Kind) -> String {
    let (about, most, bytes) = (plane.about, plane.orders_max, plane.spec_bytes_max);
    format!(
        "What a plane of a host is to have: {about}. At most {most} at one host, each with at most {bytes} bytes of `spec`."
    )
}

/// What a plane says of the fields of its specification.
fn fields_of_spec(plane: &weir_planes::Kind) -> Vec<Field> {
    let field = |field: &weir_planes::Field| Field {
        name: format!("spec.{}", field.path),
        form: field.form.to_owned(),
        default: field.default.filter(|default| !default.is_empty()).map(str::to_owned),
        required: field.default.is_none(),
        text: field.text.to_owned(),
        inner: None,
    };
    plane.fields.iter().map(field).collect()
}

fn markdown_row(out: &mut String, field: &Field, prefix: &str) {
    let default = match (&field.default, field.required) {
        (_, true) => "required".to_string(),
        (Some(default), _) => format!("`{default}`"),
        (None, _) => String::new(),
    };
    let (name, form) = (&field.name, field.form.replace('|', "or"));
    let _ = writeln!(out, "| `{prefix}{name}` | {form} | {default} | {} |", field.text);
}

fn default_text(default: &Value) -> Option<String> {
    match default {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(items) if items.is_empty() => None,
        Value::Object(_) => None,
        other => Some(other.to_string()),
    }
}

fn write_fields(out: &mut String, fields: &[Field]) {
    for field in fields {
        let _ = write!(out, "  {}  <{}>", field.name, field.form);
        match (&field.default, field.required) {
            (_, true) => out.push_str("  required"),
            (Some(default), _) => {
                let _ = write!(out, "  default {default}");
            }
            (None, _) => {}
        }
        let _ = writeln!(out, "\n      {}", field.text);
    }
}

fn schema_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Network => "Network",
        Kind::Subnet => "Subnet",
        Kind::Endpoint => "Endpoint",
        Kind::Route => "Route",
        Kind::FirewallRule => "FirewallRule",
        Kind::Balancer => "Balancer",
    }
}

/// What a document with nothing but the required fields means, without those.
fn smallest(kind: Kind) -> Result<Value, Failure> {
    let mut document = match kind {
        Kind::Network => json!({"name": "n"}),
        Kind::Subnet => json!({"network": "n", "name": "s"}),
        Kind::Endpoint => json!({"network": "n", "name": "e", "subnet": "s"}),
        Kind::Route => json!({"network": "n", "name": "r", "prefix": "0.0.0.0/0", "nextHop": "drop"}),
        Kind::FirewallRule => json!({"network": "n", "name": "f", "direction": "ingress", "action": "allow"}),
        Kind::Balancer => {
            json!({"network": "n", "name": "b", "address": "10.0.0.9", "services": [{"protocol": "tcp", "port": 80}]})
        }
    };
    let given: Vec<String> =
        document.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    document["kind"] = json!(kind.as_str());
    let resource: Resource =
        serde_json::from_value(document).map_err(|error| Failure::Input(error.to_string()))?;
    let mut full = serde_json::to_value(resource).map_err(|error| Failure::Input(error.to_string()))?;
    if let Some(fields) = full.as_object_mut() {
        fields.retain(|name, _| !given.contains(name) && name != "kind");
    }
    Ok(full)
}
