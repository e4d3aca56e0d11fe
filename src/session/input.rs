//! What a trainer writes before a step.
//!
//! Law: an input is written whole, in the element type it is declared in, and by the process that owns the rank.
//! Whatever does not fit is refused and changes nothing. Bytes, whatever the elements, have a method of their own.

use super::{Program, Session, SessionError};
use crate::format::{Element, ElementType};
use crate::id::RankId;
use crate::model::{BufferSpec, Role};

impl Session {
    /// Writes an input of the coming steps of one rank; it stays until written again. Of a program with
    /// micro-batches it takes the values of all, `[micro_batches, elements]`.
    ///
    /// # Errors
    /// An unknown program, buffer or rank, a buffer that is no input ([`SessionError::NoInput`],
    /// [`SessionError::Elsewhere`]), one that is not declared in `T` ([`SessionError::Element`]), or another
    /// length ([`SessionError::InputSize`]). The input stays as it was.
    pub fn write_input<T: Element>(
        &mut self,
        program: &str,
        rank: RankId,
        buffer: &str,
        values: &[T],
    ) -> Result<(), SessionError> {
        self.fill(program, rank, buffer, Some(T::TYPE), bytemuck::cast_slice(values))
    }

    /// As [`Session::write_input`], from the bytes of the values, little endian: for trainers that learn the
    /// element type of an input at run time, from a file of calls or another language.
    ///
    /// # Errors
    /// As [`Session::write_input`], but that bytes are taken for any element type.
    pub fn write_input_bytes(
        &mut self,
        program: &str,
        rank: RankId,
        buffer: &str,
        bytes: &[u8],
    ) -> Result<(), SessionError> {
        self.fill(program, rank, buffer, None, bytes)
    }

    fn fill(
        &mut self,
        program: &str,
        rank: RankId,
        buffer: &str,
        given: Option<ElementType>,
        bytes: &[u8],
    ) -> Result<(), SessionError> {
        let number = self.position(program)?;
        let here = self.rendezvous.range();
        let of_world = rank.index() < self.rendezvous.ranks() as usize;
        if of_world && !here.contains(&rank.index()) {
            let own: Vec<String> = self.own_ranks().map(|rank| rank.to_string()).collect();
            return Err(SessionError::Elsewhere { rank, own: own.join(", ") });
        }
        let Program { plan, inputs } = &mut self.programs[number];
        let is_input = |spec: &BufferSpec| spec.name == buffer && spec.role == Role::Input;
        let found = plan.buffers.iter().enumerate().find(|(_, spec)| is_input(spec));
        let place = found.and_then(|(position, spec)| {
            Some((spec, inputs.get_mut(rank.index().checked_sub(here.start)?)?.get_mut(position)?))
        });
        let named = || (program.to_owned(), buffer.to_owned());
        let Some((spec, place)) = place else {
            let (program, buffer) = named();
            return Err(SessionError::NoInput { program, rank, buffer });
        };
        if let Some(asked) = given.filter(|given| *given != spec.element) {
            let ((program, buffer), declared) = (named(), spec.element);
            return Err(SessionError::Element { program, buffer, declared, asked });
        }
        if bytes.len() != place.len() {
            let ((program, buffer), given, expected) = (named(), bytes.len(), place.len());
            return Err(SessionError::InputSize { program, buffer, given, expected });
        }
        place.copy_from_slice(bytes);
        Ok(())
    }
}
