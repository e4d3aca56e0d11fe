//! Inputs of the coming step, as a user writes them.
//!
//! Law: an input is written whole, in the element type it is declared in, and by the process that owns the rank.
//! Whatever does not fit is refused and changes nothing. Bytes, whatever the elements, have a method of their own.

use crate::session::{Program, Session, SessionError, Staged};
use warpweft_base::id::{ProgramId, RankId};
use warpweft_format::{Element, ElementType};
use warpweft_plan::model::{BufferSpec, Role};

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
        self.check_own(rank)?;
        let (first, ranks) = (self.rendezvous.range().start, self.ranks());
        let Program { plan, inputs, .. } = &mut self.programs[number.index()];
        let named = || (program.to_owned(), buffer.to_owned());
        let is_input = |spec: &BufferSpec| spec.role == Role::Input;
        let mut found = plan.buffers.iter().enumerate().filter(|(_, spec)| is_input(spec));
        let Some((position, spec)) = found.find(|(_, spec)| spec.name == buffer) else {
            let ((program, buffer), declared) = (named(), names(&plan.buffers, Role::Input));
            return Err(SessionError::NoInput { program, buffer, declared });
        };
        let of_rank = rank.index().checked_sub(first).and_then(|rank| inputs.get_mut(rank));
        let Some(Staged { bytes: place, is_written }) = of_rank.and_then(|inputs| inputs.get_mut(position))
        else {
            return Err(SessionError::NoRank { rank, ranks });
        };
        if let Some(requested) = given.filter(|given| *given != spec.element) {
            let ((program, buffer), declared) = (named(), spec.element);
            return Err(SessionError::Element { program, buffer, declared, requested });
        }
        if bytes.len() != place.len() {
            let ((program, buffer), given, expected) = (named(), bytes.len(), place.len());
            let (elements, element, micro_batches) = (spec.elements, spec.element, plan.micro_batches);
            return Err(SessionError::InputSize {
                program,
                rank,
                buffer,
                given,
                expected,
                elements,
                element,
                micro_batches,
            });
        }
        place.copy_from_slice(bytes);
        *is_written = true;
        Ok(())
    }

    /// Nobody will read the inputs, written or not.
    pub(in crate::session) fn need_no_inputs(&mut self) {
        let all = self.programs.iter_mut().flat_map(|program| program.inputs.iter_mut().flatten());
        all.for_each(|input| input.is_written = true);
    }

    /// Were all inputs of program number `number` written, on the ranks of this process?
    pub(in crate::session) fn check_inputs(&self, number: ProgramId) -> Result<(), SessionError> {
        let Program { plan, inputs, .. } = &self.programs[number.index()];
        for (rank, inputs) in self.own_ranks().zip(inputs) {
            let mut all = plan.buffers.iter().zip(inputs);
            if let Some((spec, _)) = all.find(|(spec, input)| spec.role == Role::Input && !input.is_written) {
                let (program, buffer) = (plan.name.clone(), spec.name.clone());
                return Err(SessionError::InputNotWritten { program, rank, buffer });
            }
        }
        Ok(())
    }
}

/// Names of the buffers of a role.
pub(in crate::session) fn names(buffers: &[BufferSpec], role: Role) -> Vec<String> {
    buffers.iter().filter(|spec| spec.role == role).map(|spec| spec.name.clone()).collect()
}
