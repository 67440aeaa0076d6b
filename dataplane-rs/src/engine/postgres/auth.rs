//! Who we are, told to PostgreSQL: SCRAM-SHA-256 (with channel binding where TLS allows it), md5, password.
//!
//! A state machine without IO: `step` takes one authentication message and may give the answer to send.
//! May reject: methods that would show the password (`password` unless `Policy::cleartext`), a server that does not prove
//! that it knows the password, a missing channel binding when it is required.
use super::uri::ChannelBinding as Wanted;
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::{
    md5_hash,
    sasl::{ChannelBinding, ScramSha256},
};
use postgres_protocol::message::{backend::Message, frontend};

/// Why authentication ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The server asks for a password and the URL has none.
    #[error("the server asks for a password and there is none")]
    NoPassword,
    /// The server asks for the password as it is, and the connection is not protected.
    #[error("the server asks for an unprotected password")]
    Cleartext,
    /// channel_binding=require and the server offers none.
    #[error("channel binding is required and not offered")]
    Unbound,
    /// GSS, SSPI or a SASL mechanism that we do not have.
    #[error("the server asks for an unsupported method")]
    Unsupported,
    /// The server's part is wrong or out of order: it may not know the password.
    #[error("the server's proof is wrong")]
    Proof,
}

/// What may be done on this connection.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The password may be sent as it is: a Unix socket, or TLS that the URL insists on.
    pub cleartext: bool,
    /// From the URL.
    pub binding: Wanted,
    /// tls-server-end-point data, under TLS.
    pub end_point: Option<Vec<u8>>,
    /// Whether TLS covers the connection.
    pub tls: bool,
}

enum State {
    Start,
    /// The password was sent in some form; the server decides.
    Sent,
    Scram(Box<ScramSha256>, bool),
    ScramSent(Box<ScramSha256>, bool),
    /// The server has proved itself; whether the channel was bound.
    Proved(bool),
    Done,
}

/// One authentication.
pub struct Auth<'a> {
    user: &'a str,
    password: Option<&'a str>,
    policy: Policy,
    state: State,
}

impl<'a> Auth<'a> {
    /// Begins.
    pub fn new(user: &'a str, password: Option<&'a str>, policy: Policy) -> Self {
        Self { user, password, policy, state: State::Start }
    }

    /// Whether the server has let us in.
    pub fn done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    fn password(&self) -> Result<&'a str, AuthError> {
        self.password.ok_or(AuthError::NoPassword)
    }

    /// Takes an `Authentication…` message; what is to be sent, if anything, is appended to `out`.
    pub fn step(&mut self, message: &Message, out: &mut BytesMut) -> Result<(), AuthError> {
        let required = self.policy.binding == Wanted::Require;
        self.state = match (std::mem::replace(&mut self.state, State::Start), message) {
            (State::Start | State::Sent, Message::AuthenticationOk) if !required => State::Done,
            (State::Start | State::Sent | State::Proved(false), Message::AuthenticationOk) if required => {
                return Err(AuthError::Unbound);
            }
            (State::Proved(_), Message::AuthenticationOk) => State::Done,
            (State::Start, Message::AuthenticationCleartextPassword | Message::AuthenticationMd5Password(_)) if required => {
                return Err(AuthError::Unbound);
            }
            (State::Start, Message::AuthenticationCleartextPassword) => {
                if !self.policy.cleartext {
                    return Err(AuthError::Cleartext);
                }
                frontend::password_message(self.password()?.as_bytes(), out).map_err(|_| AuthError::Unsupported)?;
                State::Sent
            }
            (State::Start, Message::AuthenticationMd5Password(body)) => {
                let hash = md5_hash(self.user.as_bytes(), self.password()?.as_bytes(), body.salt());
                frontend::password_message(hash.as_bytes(), out).map_err(|_| AuthError::Unsupported)?;
                State::Sent
            }
            (State::Start, Message::AuthenticationSasl(body)) => {
                let (mut plain, mut plus) = (false, false);
                let mut mechanisms = body.mechanisms();
                while let Some(mechanism) = mechanisms.next().map_err(|_| AuthError::Proof)? {
                    plain |= mechanism == "SCRAM-SHA-256";
                    plus |= mechanism == "SCRAM-SHA-256-PLUS";
                }
                let bind = self.policy.binding != Wanted::Disable;
                let (name, binding, bound) = match self.policy.end_point.take() {
                    Some(data) if plus && bind => ("SCRAM-SHA-256-PLUS", ChannelBinding::tls_server_end_point(data), true),
                    _ if required => return Err(AuthError::Unbound),
                    // "We could, you did not offer it": a server that did offer it then knows of a man in the middle.
                    Some(_) if plain && bind && !plus => ("SCRAM-SHA-256", ChannelBinding::unrequested(), false),
                    _ if plain => ("SCRAM-SHA-256", ChannelBinding::unsupported(), false),
                    _ => return Err(AuthError::Unsupported),
                };
                let scram = ScramSha256::new(self.password()?.as_bytes(), binding);
                frontend::sasl_initial_response(name, scram.message(), out).map_err(|_| AuthError::Unsupported)?;
                State::Scram(Box::new(scram), bound)
            }
            (State::Scram(mut scram, bound), Message::AuthenticationSaslContinue(body)) => {
                scram.update(body.data()).map_err(|_| AuthError::Proof)?;
                frontend::sasl_response(scram.message(), out).map_err(|_| AuthError::Proof)?;
                State::ScramSent(scram, bound)
            }
            (State::ScramSent(mut scram, bound), Message::AuthenticationSaslFinal(body)) => {
                scram.finish(body.data()).map_err(|_| AuthError::Proof)?;
                State::Proved(bound)
            }
            (State::Start, _) => return Err(AuthError::Unsupported),
            _ => return Err(AuthError::Proof),
        };
        Ok(())
    }
}
