//! Rules from words.

use super::lexer::{Token, text_of, words};
use super::{Binary, DEPTH_MAX, Expression, Method, RULES_MAX, Rule, Rules, Scope, Uid, Value, Variable};
use std::sync::Arc;

type Parsed<T> = Result<T, String>;

/// Reads rules.
///
/// # Errors
/// What is wrong, with its line.
pub fn rules(text: &str) -> Parsed<Rules> {
    let words = words(text)?;
    let mut parser = Parser { words: &words, at: 0, depth: 0 };
    let mut rules = Vec::new();
    while parser.at < words.len() {
        if rules.len() == RULES_MAX {
            return Err(format!("more than {RULES_MAX} rules"));
        }
        let line = parser.line();
        rules.push(
            parser
                .rule()
                .map_err(|reason| format!("line {}, in the rule of line {line}: {reason}", parser.line()))?,
        );
    }
    Ok(Rules(rules))
}

struct Parser<'w> {
    words: &'w [(Token, usize)],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn line(&self) -> usize {
        self.words.get(self.at).or_else(|| self.words.last()).map_or(1, |(_, line)| *line)
    }

    fn peek(&self) -> Option<&Token> {
        self.words.get(self.at).map(|(token, _)| token)
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(found)) if *found == sign)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if found == name)
    }

    fn eat(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        self.at += usize::from(found);
        found
    }

    fn eat_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn need(&mut self, sign: &str) -> Parsed<()> {
        if self.eat(sign) { Ok(()) } else { Err(format!("'{sign}' is missing {}", self.before())) }
    }

    fn before(&self) -> String {
        match self.peek() {
            None => "at the end".to_string(),
            Some(Token::Name(name)) => format!("before '{name}'"),
            Some(Token::Sign(sign)) => format!("before '{sign}'"),
            Some(Token::Number(number)) => format!("before {number}"),
            Some(Token::Text(..)) => "before a text".to_string(),
        }
    }

    fn name(&mut self) -> Parsed<String> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => Err(format!("a name is missing {}", self.before())),
        }
    }

    fn text(&mut self) -> Parsed<String> {
        let text = match self.peek() {
            Some(Token::Text(glyphs, pattern)) => {
                text_of(glyphs, *pattern).ok_or("'\\*' is for patterns behind 'like' only")?
            }
            _ => return Err(format!("a text in \" is missing {}", self.before())),
        };
        self.at += 1;
        Ok(text)
    }

    fn rule(&mut self) -> Parsed<Rule> {
        let line = self.line();
        let mut annotations = std::collections::BTreeMap::new();
        while self.eat("@") {
            let name = self.name()?;
            let text = if self.eat("(") {
                let text = self.text()?;
                self.need(")")?;
                text
            } else {
                String::new()
            };
            if annotations.insert(name.clone(), text).is_some() {
                return Err(format!("'@{name}' stands twice"));
            }
        }
        let permit = match self.name()?.as_str() {
            "permit" => true,
            "forbid" => false,
            other => return Err(format!("a rule begins with permit or forbid, not with '{other}'")),
        };
        self.need("(")?;
        let principal = self.scope("principal")?;
        self.need(",")?;
        let action = self.actions()?;
        self.need(",")?;
        let resource = self.scope("resource")?;
        self.eat(",");
        self.need(")")?;
        let mut conditions = Vec::new();
        loop {
            let when = match () {
                () if self.eat_name("when") => true,
                () if self.eat_name("unless") => false,
                () => break,
            };
            self.need("{")?;
            conditions.push((when, self.expression()?));
            self.need("}")?;
        }
        self.need(";")?;
        Ok(Rule { annotations, permit, principal, action, resource, conditions, line })
    }

    fn scope(&mut self, variable: &str) -> Parsed<Scope> {
        if !self.eat_name(variable) {
            return Err(format!("'{variable}' is missing {}", self.before()));
        }
        if self.eat("==") {
            return Ok(Scope::Is(self.entity()?));
        }
        if self.eat_name("in") {
            return Ok(Scope::In(self.entity()?));
        }
        if self.eat_name("is") {
            let kind = self.path()?;
            let within = if self.eat_name("in") { Some(self.entity()?) } else { None };
            return Ok(Scope::Kind(kind.into(), within));
        }
        Ok(Scope::Any)
    }

    fn actions(&mut self) -> Parsed<Vec<Scope>> {
        if !self.is_name("action") {
            return Err(format!("'action' is missing {}", self.before()));
        }
        let begin = self.at;
        self.at += 1;
        if self.eat_name("in") && self.eat("[") {
            let mut all = Vec::new();
            while !self.is_sign("]") {
                all.push(Scope::In(self.entity()?));
                if !self.eat(",") {
                    break;
                }
            }
            self.need("]")?;
            return Ok(all);
        }
        self.at = begin;
        match self.scope("action")? {
            Scope::Kind(..) => Err("an action has no 'is'".to_string()),
            scope => Ok(vec![scope]),
        }
    }

    /// `A::B`, as one text.
    fn path(&mut self) -> Parsed<String> {
        let mut path = self.name()?;
        while self.is_sign("::") && matches!(self.words.get(self.at + 1), Some((Token::Name(_), _))) {
            self.at += 1;
            path = format!("{path}::{}", self.name()?);
        }
        Ok(path)
    }

    fn entity(&mut self) -> Parsed<Uid> {
        if self.is_sign("?") {
            return Err("templates (with '?') are not served".to_string());
        }
        let kind = self.path()?;
        self.need("::")?;
        let id = self.text()?;
        Ok(Uid::new(&kind, &id))
    }

    fn expression(&mut self) -> Parsed<Expression> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("an expression is nested more than {DEPTH_MAX} times"));
        }
        let found = if self.eat_name("if") {
            let condition = self.expression()?;
            let then = if self.eat_name("then") {
                self.expression()?
            } else {
                return Err("'then' is missing".into());
            };
            let other = if self.eat_name("else") {
                self.expression()?
            } else {
                return Err("'else' is missing".into());
            };
            Ok(Expression::If(Box::new([condition, then, other])))
        } else {
            self.left(0)
        };
        self.depth -= 1;
        found
    }

    /// Operators that bind alike and stand in a row, from the loosest.
    fn left(&mut self, level: usize) -> Parsed<Expression> {
        const LEVELS: [&[(&str, Binary)]; 4] = [
            &[("||", Binary::Or)],
            &[("&&", Binary::And)],
            &[("+", Binary::Add), ("-", Binary::Subtract)],
            &[("*", Binary::Multiply)],
        ];
        if level == LEVELS.len() {
            return self.unary();
        }
        let mut left = if level == 1 { self.relation()? } else { self.left(level + 1)? };
        let mut length = 0;
        while let Some((_, operator)) = LEVELS[level].iter().find(|(sign, _)| self.is_sign(sign)) {
            self.at += 1;
            length += 1;
            if length > DEPTH_MAX {
                return Err(format!("more than {DEPTH_MAX} operators in a row: put them into several rules"));
            }
            let right = if level == 1 { self.relation()? } else { self.left(level + 1)? };
            left = Expression::Binary(*operator, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn relation(&mut self) -> Parsed<Expression> {
        let left = self.left(2)?;
        if self.eat_name("has") {
            let name = if matches!(self.peek(), Some(Token::Text(..))) { self.text()? } else { self.name()? };
            return Ok(Expression::Has(Box::new(left), name.into()));
        }
        if self.eat_name("like") {
            let Some(Token::Text(glyphs, _)) = self.peek() else {
                return Err(format!("a pattern is missing {}", self.before()));
            };
            let glyphs = glyphs.clone();
            self.at += 1;
            return Ok(Expression::Like(Box::new(left), glyphs));
        }
        if self.eat_name("is") {
            let kind: Arc<str> = self.path()?.into();
            let within = if self.eat_name("in") { Some(Box::new(self.left(2)?)) } else { None };
            return Ok(Expression::Kind(Box::new(left), kind, within));
        }
        let operator = match self.peek() {
            Some(Token::Sign("==")) => Binary::Equal,
            Some(Token::Sign("!=")) => Binary::Unequal,
            Some(Token::Sign("<")) => Binary::Less,
            Some(Token::Sign("<=")) => Binary::LessEqual,
            Some(Token::Sign(">")) => Binary::Greater,
            Some(Token::Sign(">=")) => Binary::GreaterEqual,
            Some(Token::Name(name)) if name == "in" => Binary::In,
            _ => return Ok(left),
        };
        self.at += 1;
        Ok(Expression::Binary(operator, Box::new(left), Box::new(self.left(2)?)))
    }

    fn unary(&mut self) -> Parsed<Expression> {
        let mut signs = Vec::new();
        while self.is_sign("!") || self.is_sign("-") {
            signs.push(self.is_sign("!"));
            self.at += 1;
        }
        if signs.len() > 4 {
            return Err("more than four '!' or '-' in a row".to_string());
        }
        let mut inner = self.member()?;
        for not in signs.into_iter().rev() {
            inner = match inner {
                Expression::Literal(Value::Long(number)) if !not => Expression::Literal(Value::Long(
                    number.checked_neg().ok_or("a number that is too large")?,
                )),
                inner if not => Expression::Not(Box::new(inner)),
                inner => Expression::Negative(Box::new(inner)),
            };
        }
        Ok(inner)
    }

    fn member(&mut self) -> Parsed<Expression> {
        let mut inner = self.primary()?;
        loop {
            if self.eat(".") {
                let name = self.name()?;
                inner = if self.is_sign("(") {
                    self.method(inner, &name)?
                } else {
                    Expression::Field(Box::new(inner), name.into())
                };
            } else if self.eat("[") {
                let name = self.text()?;
                self.need("]")?;
                inner = Expression::Field(Box::new(inner), name.into());
            } else {
                return Ok(inner);
            }
        }
    }

    fn method(&mut self, object: Expression, name: &str) -> Parsed<Expression> {
        let (method, arguments) = match name {
            "contains" => (Method::Contains, 1),
            "containsAll" => (Method::ContainsAll, 1),
            "containsAny" => (Method::ContainsAny, 1),
            "isEmpty" => (Method::IsEmpty, 0),
            "isInRange" => (Method::IsInRange, 1),
            "isIpv4" => (Method::IsIpv4, 0),
            "isIpv6" => (Method::IsIpv6, 0),
            "isLoopback" => (Method::IsLoopback, 0),
            "isMulticast" => (Method::IsMulticast, 0),
            other => return Err(format!("'.{other}()' is not served")),
        };
        self.need("(")?;
        let mut all = vec![object];
        all.extend(self.list(")")?);
        if all.len() != arguments + 1 {
            return Err(format!("'.{name}()' takes {arguments} arguments"));
        }
        Ok(Expression::Call(method, all))
    }

    /// Expressions up to `end`, which is eaten.
    fn list(&mut self, end: &str) -> Parsed<Vec<Expression>> {
        let mut all = Vec::new();
        while !self.is_sign(end) {
            all.push(self.expression()?);
            if !self.eat(",") {
                break;
            }
        }
        self.need(end)?;
        Ok(all)
    }

    fn primary(&mut self) -> Parsed<Expression> {
        match self.peek() {
            Some(Token::Number(number)) => {
                let number = i64::try_from(*number).map_err(|_| "a number that is too large")?;
                self.at += 1;
                Ok(Expression::Literal(Value::Long(number)))
            }
            Some(Token::Text(..)) => Ok(Expression::Literal(Value::Text(self.text()?.into()))),
            Some(Token::Sign("(")) => {
                self.at += 1;
                let inner = self.expression()?;
                self.need(")")?;
                Ok(inner)
            }
            Some(Token::Sign("[")) => {
                self.at += 1;
                Ok(Expression::Set(self.list("]")?))
            }
            Some(Token::Sign("{")) => self.record(),
            Some(Token::Name(_)) => self.named(),
            _ => Err(format!("an expression is missing {}", self.before())),
        }
    }

    fn record(&mut self) -> Parsed<Expression> {
        self.need("{")?;
        let mut fields: Vec<(Arc<str>, Expression)> = Vec::new();
        while !self.is_sign("}") {
            let name = if matches!(self.peek(), Some(Token::Text(..))) { self.text()? } else { self.name()? };
            self.need(":")?;
            if fields.iter().any(|(known, _)| **known == *name) {
                return Err(format!("field '{name}' stands twice"));
            }
            fields.push((name.into(), self.expression()?));
            if !self.eat(",") {
                break;
            }
        }
        self.need("}")?;
        Ok(Expression::Record(fields))
    }

    fn named(&mut self) -> Parsed<Expression> {
        let path = self.path()?;
        if self.eat("::") {
            return Ok(Expression::Literal(Value::Entity(Uid::new(&path, &self.text()?))));
        }
        if self.eat("(") {
            let mut arguments = self.list(")")?;
            return match (path.as_str(), arguments.pop(), arguments.is_empty()) {
                ("ip", Some(argument), true) => Ok(Expression::Address(Box::new(argument))),
                _ => Err(format!("'{path}(…)' is not served")),
            };
        }
        Ok(match path.as_str() {
            "true" => Expression::Literal(Value::Bool(true)),
            "false" => Expression::Literal(Value::Bool(false)),
            "principal" => Expression::Variable(Variable::Principal),
            "action" => Expression::Variable(Variable::Action),
            "resource" => Expression::Variable(Variable::Resource),
            "context" => Expression::Variable(Variable::Context),
            other => return Err(format!("'{other}' is neither a variable nor a function nor an entity")),
        })
    }
}
