//! From text to statements.
//!
//! ```text
//! statement  = ( "on-demand" | "once" | "every" duration ) name [ "when" expression ] "=" expression ";"
//! expression = both { "or" both }             both    = compared { "and" compared }
//! compared   = sum [ ( < | <= | > | >= | == | != ) sum ]
//! sum        = product { ( + | - ) product }  product = unary { ( * | / ) unary }
//! unary      = ( "not" | - ) unary | number | duration | text | name [ "." name ] [ "(" [ expression { "," expression } ] ")" ]
//!            | "(" expression ")"
//! ```
//! `#` begins a comment. A duration is a number with `ms`, `s`, `m` or `h`.

use super::{DEPTH_MAX, PARTS_MAX, When};
use crate::error::{Error, Result};

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statement {
    pub at: usize,
    pub name: String,
    pub when: When,
    pub condition: Option<Expression>,
    pub value: Expression,
}

/// An expression and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Expression {
    pub at: usize,
    pub part: Part,
}

/// A part of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Number(f64),
    Duration(u64),
    Text(String),
    /// A stream, or a field of it.
    Name(String, Option<String>),
    Call(String, Vec<Expression>),
    Unary(Unary, Box<Expression>),
    Binary(Binary, Box<Expression>, Box<Expression>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unary {
    Not,
    Minus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Or,
    And,
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
    Equal,
    NotEqual,
    Plus,
    Minus,
    Times,
    By,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Number(f64),
    Duration(u64),
    Text(String),
    Sign(&'static str),
    End,
}

const SIGNS: [&str; 16] =
    ["<=", ">=", "==", "!=", "<", ">", "=", "+", "-", "*", "/", "(", ")", ",", ";", "."];

struct Parser<'a> {
    text: &'a str,
    /// Where the next token is looked for.
    next: usize,
    /// Where the present token begins.
    at: usize,
    token: Token,
    depth: usize,
    parts: usize,
}

/// Reads all statements.
pub(super) fn parse(text: &str) -> Result<Vec<Statement>> {
    let mut parser = Parser { text, next: 0, at: 0, token: Token::End, depth: 0, parts: 0 };
    parser.advance()?;
    let mut statements = Vec::new();
    while parser.token != Token::End {
        statements.push(parser.statement()?);
        if statements.len() > super::QUERIES_MAX {
            return Err(parser.wrong(format!("more than {} queries", super::QUERIES_MAX)));
        }
    }
    Ok(statements)
}

impl Parser<'_> {
    fn wrong(&self, reason: impl Into<String>) -> Error {
        Error::Query { at: self.at, reason: reason.into() }
    }

    fn rest(&self) -> &str {
        self.text.get(self.next..).unwrap_or("")
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start().len();
            let comment = match rest[blank..].starts_with('#') {
                true => rest[blank..].find('\n').unwrap_or(rest.len() - blank),
                false => 0,
            };
            if blank + comment == 0 {
                return;
            }
            self.next += blank + comment;
        }
    }

    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> String {
        let rest = self.rest();
        let end = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        let taken = rest[..end].to_string();
        self.next += end;
        taken
    }

    fn advance(&mut self) -> Result<()> {
        self.skip_blanks();
        self.at = self.next;
        let Some(first) = self.rest().chars().next() else {
            self.token = Token::End;
            return Ok(());
        };
        self.token = match first {
            'a'..='z' | 'A'..='Z' | '_' => {
                // 'on-demand' is one word; elsewhere '-' is a sign.
                match self.rest().starts_with("on-demand") {
                    true => {
                        self.next += "on-demand".len();
                        Token::Word("on-demand".into())
                    }
                    false => Token::Word(self.take_while(|c| c.is_ascii_alphanumeric() || c == '_')),
                }
            }
            '0'..='9' => self.number()?,
            '"' => self.quoted()?,
            _ => {
                let sign = SIGNS.into_iter().find(|sign| self.rest().starts_with(sign));
                let sign = sign.ok_or_else(|| self.wrong(format!("'{first}' has no meaning here")))?;
                self.next += sign.len();
                Token::Sign(sign)
            }
        };
        Ok(())
    }

    fn number(&mut self) -> Result<Token> {
        let text = self.take_while(|c| c.is_ascii_digit() || c == '.');
        let number: f64 = text.parse().map_err(|_| self.wrong(format!("'{text}' is no number")))?;
        let unit = self.take_while(|c| c.is_ascii_alphabetic());
        let factor: f64 = match unit.as_str() {
            "" => return Ok(Token::Number(number)),
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return Err(self.wrong(format!("'{unit}' is no unit of time: use ms, s, m or h"))),
        };
        Ok(Token::Duration((number * factor) as u64))
    }

    fn quoted(&mut self) -> Result<Token> {
        self.next += 1;
        let text = self.take_while(|c| c != '"' && c != '\n');
        if !self.rest().starts_with('"') {
            return Err(self.wrong("the text has no closing quote on its line"));
        }
        self.next += 1;
        Ok(Token::Text(text))
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.token, Token::Sign(other) if other == sign)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(&self.token, Token::Word(other) if other == word)
    }

    fn expect(&mut self, sign: &str) -> Result<()> {
        if self.is_sign(sign) {
            self.advance()
        } else {
            Err(self.wrong(format!("'{sign}' is missing before this")))
        }
    }

    fn word(&mut self, what: &str) -> Result<String> {
        match std::mem::replace(&mut self.token, Token::End) {
            Token::Word(word) => {
                self.advance()?;
                Ok(word)
            }
            _ => Err(self.wrong(format!("{what} is missing before this"))),
        }
    }

    fn statement(&mut self) -> Result<Statement> {
        self.parts = 0;
        let at = self.at;
        let when = match self.word("'on-demand', 'once' or 'every'")?.as_str() {
            "on-demand" => When::OnDemand,
            "once" => When::Once,
            "every" => match self.token {
                Token::Duration(duration_ns) if super::WINDOW_NS.contains(&duration_ns) => {
                    self.advance()?;
                    When::Every(duration_ns)
                }
                _ => return Err(self.wrong("'every' wants a time from 10ms to 1h, such as 500ms")),
            },
            other => {
                let reason =
                    format!("a query begins with 'on-demand', 'once' or 'every', not with '{other}'");
                return Err(Error::Query { at, reason });
            }
        };
        let name = self.word("the name of the query")?;
        let condition = if self.is_word("when") {
            self.advance()?;
            Some(self.expression()?)
        } else {
            None
        };
        self.expect("=")?;
        let value = self.expression()?;
        self.expect(";")?;
        Ok(Statement { at, name, when, condition, value })
    }

    fn made(&mut self, at: usize, part: Part) -> Result<Expression> {
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err(self.wrong(format!("a query of more than {PARTS_MAX} parts")));
        }
        Ok(Expression { at, part })
    }

    fn expression(&mut self) -> Result<Expression> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.wrong(format!("an expression nested more than {DEPTH_MAX} deep")));
        }
        let mut left = self.both()?;
        while self.is_word("or") {
            self.advance()?;
            let right = self.both()?;
            left = self.made(left.at, Part::Binary(Binary::Or, Box::new(left), Box::new(right)))?;
        }
        self.depth -= 1;
        Ok(left)
    }

    fn both(&mut self) -> Result<Expression> {
        let mut left = self.compared()?;
        while self.is_word("and") {
            self.advance()?;
            let right = self.compared()?;
            left = self.made(left.at, Part::Binary(Binary::And, Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn operator(&self, known: &[(&str, Binary)]) -> Option<Binary> {
        known.iter().find(|(sign, _)| self.is_sign(sign)).map(|(_, operator)| *operator)
    }

    fn compared(&mut self) -> Result<Expression> {
        const KNOWN: [(&str, Binary); 6] = [
            ("<", Binary::Less),
            ("<=", Binary::LessOrEqual),
            (">", Binary::More),
            (">=", Binary::MoreOrEqual),
            ("==", Binary::Equal),
            ("!=", Binary::NotEqual),
        ];
        let left = self.sum()?;
        let Some(operator) = self.operator(&KNOWN) else { return Ok(left) };
        self.advance()?;
        let right = self.sum()?;
        self.made(left.at, Part::Binary(operator, Box::new(left), Box::new(right)))
    }

    fn sum(&mut self) -> Result<Expression> {
        let mut left = self.product()?;
        while let Some(operator) = self.operator(&[("+", Binary::Plus), ("-", Binary::Minus)]) {
            self.advance()?;
            let right = self.product()?;
            left = self.made(left.at, Part::Binary(operator, Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Expression> {
        let mut left = self.unary()?;
        while let Some(operator) = self.operator(&[("*", Binary::Times), ("/", Binary::By)]) {
            self.advance()?;
            let right = self.unary()?;
            left = self.made(left.at, Part::Binary(operator, Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expression> {
        let at = self.at;
        let operator = match () {
            () if self.is_word("not") => Unary::Not,
            () if self.is_sign("-") => Unary::Minus,
            () => return self.primary(),
        };
        self.advance()?;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.wrong(format!("an expression nested more than {DEPTH_MAX} deep")));
        }
        let inner = self.unary()?;
        self.depth -= 1;
        self.made(at, Part::Unary(operator, Box::new(inner)))
    }

    fn primary(&mut self) -> Result<Expression> {
        let at = self.at;
        if self.is_sign("(") {
            self.advance()?;
            let inner = self.expression()?;
            self.expect(")")?;
            return Ok(inner);
        }
        let part = match std::mem::replace(&mut self.token, Token::End) {
            Token::Number(number) => Part::Number(number),
            Token::Duration(duration_ns) => Part::Duration(duration_ns),
            Token::Text(text) => Part::Text(text),
            Token::Word(word) => {
                self.advance()?;
                let part = self.named(word)?;
                return self.made(at, part);
            }
            _ => return Err(self.wrong("a value is missing before this")),
        };
        self.advance()?;
        self.made(at, part)
    }

    fn named(&mut self, word: String) -> Result<Part> {
        if self.is_sign(".") {
            self.advance()?;
            let field = self.word("the name of a field")?;
            return Ok(Part::Name(word, Some(field)));
        }
        if !self.is_sign("(") {
            return Ok(Part::Name(word, None));
        }
        self.advance()?;
        let mut given = Vec::new();
        while !self.is_sign(")") {
            if !given.is_empty() {
                self.expect(",")?;
            }
            given.push(self.expression()?);
        }
        self.advance()?;
        Ok(Part::Call(word, given))
    }
}
