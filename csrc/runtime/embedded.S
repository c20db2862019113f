// The operator's device code and build facts, as bytes inside its DSO. The build defines the three file names.
    .section .rodata.sm70_embedded, "a", @progbits

    .macro embed symbol, file
    .balign 16
    .globl \symbol
    .hidden \symbol
\symbol:
    .incbin "\file"
    .globl \symbol\()_end
    .hidden \symbol\()_end
\symbol\()_end:
    .byte 0
    .endm

    embed sm70_embedded_cubin, SM70_CUBIN_FILE
    embed sm70_embedded_ptx, SM70_PTX_FILE
    embed sm70_embedded_facts, SM70_FACTS_FILE

    .section .note.GNU-stack, "", @progbits
