cdef class Encoder:
    """Hold an encoder laid out for one instruction set. Immutable, so threads may share it.

    memory: uint8, 64-byte aligned. As in ``c/encoder/encoder.h``: linears (n,) of ``LINEAR_FIELDS``; steps (n,
    STEP_NUMBERS) int64, each a record of ``STEPS``; strides (n,) int64. positions: (position_rows, E) float32, or None;
    a further row has their mean if an EMBED step has ``mean``; with as many more, ``seconds`` can be given. words: (vocabulary, E) float32, uint16 bits of
    float16, or int8 with scales (vocabulary,) float32. token_weights: (vocabulary,) float32; None: all 1.
    """

    cdef ff_encoder encoder
    cdef object keep_alive
    cdef bint segments

    def __cinit__(
        self, const unsigned char[::1] memory, const ff_linear[::1] linears, const int64_t[:, ::1] steps,
        const int64_t[::1] strides, const float[:, ::1] positions, words, const float[::1] token_weights, *,
        int heads, int head, int hidden, int outputs, int position_rows, int position_start, int pad_id, int layers,
        float eps, int isa, const float[::1] scales=None,
    ):
        cdef const float[:, ::1] singles
        cdef const unsigned short[:, ::1] halves
        cdef const signed char[:, ::1] small
        if steps.shape[0] == 0 or not 1 <= strides.shape[0] <= FF_BUFFERS:
            raise ValueError(f"a packed encoder needs steps and 1 to {FF_BUFFERS} buffers")
        if steps.shape[1] != STEP_NUMBERS:
            raise ValueError(f"a step has {STEP_NUMBERS} numbers, not {steps.shape[1]}")
        cdef const ff_step *step = <const ff_step *>&steps[0, 0]
        if any(not 0 <= step[i].kind < FF_STEP_KINDS for i in range(steps.shape[0])):
            raise ValueError(f"a step has a kind from 0 to {FF_STEP_KINDS - 1}")
        if <uintptr_t>&memory[0] % 64:
            raise ValueError("the memory of a packed encoder must be 64-byte aligned")
        if not 0 <= isa < FF_ISAS or not ff_isa_usable(isa):
            raise ValueError(f"instruction set {isa} cannot run on this machine")
        attended = attention_formats(isa)
        if any(linears[i].format not in formats(isa) for i in range(linears.shape[0])):
            raise ValueError(f"a product's format cannot be computed on instruction set {isa} here")
        rounding = {FF_BF16, FF_INT8, FF_INT8_TILES} if isa >= FF_AVX512 else {FF_BF16}
        if any(linears[i].result == FF_BF16 and linears[i].format not in rounding for i in range(linears.shape[0])):
            raise ValueError(f"a product's results cannot be bfloat16 on instruction set {isa} in its format")
        if any(step[i].kind in (FF_PACK, FF_ATTEND) and step[i].attend.format not in attended for i in range(steps.shape[0])):
            raise ValueError(f"attention's format cannot be computed on instruction set {isa} here")
        if words.shape[0] == 0 or position_rows < 1:
            raise ValueError("an encoder needs words and positions")
        rows = position_rows + any(step[i].kind == FF_EMBED and step[i].embed.mean for i in range(steps.shape[0]))
        self.segments = positions is not None and rows == position_rows and positions.shape[0] == 2 * rows
        if positions is not None and (words.shape[1] != positions.shape[1] or positions.shape[0] != rows << self.segments):
            raise ValueError(f"the table of positions must have {rows} rows, as wide as those of words")
        if token_weights is not None and token_weights.shape[0] != words.shape[0]:
            raise ValueError(f"{token_weights.shape[0]} token weights do not fit {words.shape[0]} words")
        if scales is not None and (scales.shape[0] != words.shape[0] or words.itemsize != 1):
            raise ValueError(f"{scales.shape[0]} scales do not fit {words.shape[0]} words of {words.itemsize} bytes")
        if scales is not None:
            small = words
            self.encoder.words, self.encoder.scales = &small[0, 0], &scales[0]
        elif words.itemsize == 2:
            halves = words
            self.encoder.words = &halves[0, 0]
        else:
            singles = words
            self.encoder.words = &singles[0, 0]
        self.keep_alive = (memory, linears, steps, strides, positions, words, scales, token_weights)
        self.encoder.memory = <const char *>&memory[0]
        self.encoder.linears = &linears[0] if linears.shape[0] else NULL
        self.encoder.steps, self.encoder.count = step, <int32_t>steps.shape[0]
        self.encoder.strides, self.encoder.buffers = &strides[0], <int32_t>strides.shape[0]
        if positions is not None:
            self.encoder.positions = &positions[0, 0]
        self.encoder.position_rows = position_rows
        if token_weights is not None:
            self.encoder.token_weights = &token_weights[0]
        self.encoder.half, self.encoder.vocabulary = words.itemsize == 2, <int32_t>words.shape[0]
        self.encoder.heads, self.encoder.head, self.encoder.hidden = heads, head, hidden
        self.encoder.outputs = outputs
        self.encoder.position_start, self.encoder.pad_id = position_start, pad_id
        self.encoder.layers, self.encoder.eps, self.encoder.isa = layers, eps, isa

    def run(
        self, const int32_t[::1] ids, const int64_t[::1] offsets, float[:, ::1] pooled, states, int threads,
        int64_t skip=0, const int64_t[::1] seconds=None,
    ):
        """Write pooled vectors (B, P) and, unless None, states (wanted layers, N, D) of ids (N,) and offsets (B + 1,).

        Sums are float32, or int32 of int8 products. Pooling leaves out the first ``skip`` tokens of every text.
        seconds (B,) or None: the tokens of each text's segment 0, before those of segment 1.
        """
        cdef ff_texts texts
        cdef float[:, :, ::1] kept
        cdef int64_t bad
        cdef int failed
        texts.texts = offsets.shape[0] - 1
        if texts.texts < 0 or offsets[0] != 0 or offsets[texts.texts] != ids.shape[0]:
            raise ValueError("offsets must start at 0 and end at the number of ids")
        if skip < 0:
            raise ValueError(f"skip must be at least 0, not {skip}")
        if pooled.shape[0] != texts.texts or pooled.shape[1] != self.encoder.outputs:
            raise ValueError(f"pooled must be {(texts.texts, self.encoder.outputs)}, not {pooled.shape[0], pooled.shape[1]}")
        if texts.texts == 0:
            return
        if seconds is not None and (not self.segments or seconds.shape[0] != texts.texts):
            raise ValueError("seconds need an encoder with positions of two segments, and a number for each text")
        texts.seconds = NULL if seconds is None else &seconds[0]
        texts.offsets, texts.pooled, texts.states, texts.skip = &offsets[0], &pooled[0, 0], NULL, skip
        if ids.shape[0] == 0:
            raise ValueError("text 0 has no tokens, too many, or an id outside the vocabulary")
        texts.ids = &ids[0]
        if states is not None:
            kept = states
            if (kept.shape[0], kept.shape[1], kept.shape[2]) != (self.encoder.layers, ids.shape[0], self.encoder.hidden):
                raise ValueError("states must be (wanted layers, N, D)")
            texts.states = &kept[0, 0, 0]
        with nogil:
            bad = ff_check_texts(&self.encoder, &texts)
            failed = 0 if bad >= 0 else ff_encoder_run(&self.encoder, &texts, threads)
        if bad >= 0:
            raise ValueError(f"text {bad} has no tokens, too many, or an id outside the vocabulary")
        if failed:
            raise MemoryError("no memory for the scratch space of the encoder")
