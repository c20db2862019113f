"""What the canary says on the emulator when each of its faults is caught, as it was printed."""

CANARY_REPORTS = """\
canary: none: ran to its end with the right result
canary: out_of_bounds: reported: emulated V100: canary_out_of_bounds+0x70: STG.E.SYS [R2], R5: write of 4 bytes at \
0x55e2741ec340: out of bounds; nearest buffer 'out' has 256 bytes, the access is at its offset 256 [block (0,0,0), \
warp 2, lane 0]
canary: misaligned: reported: emulated V100: canary_misaligned+0x90: STG.E.64.SYS [R2+0x4], R4: misaligned 8-byte \
access to global memory at 0x55e2741edb04 [block (0,0,0), warp 0, lane 0]
canary: undeclared_write: reported: emulated V100: canary_undeclared_write+0x90: STG.E.SYS [R4], RZ: write of 4 \
bytes at 0x55e2741eb9c0: buffer 'in' (offset 0) is read-only [block (0,0,0), warp 0, lane 0]
canary: uninitialised: reported: emulated V100: canary_uninitialised+0x90: STG.E.SYS [R2], R5: uninitialised: bytes \
that nothing has written are stored, global address 0x55e26f710540: buffer 'out' at its offset 0 [block (0,0,0), \
warp 0, lane 0]
canary: taint: reported: emulated V100: canary_taint+0xa0: STG.E.SYS [R4], R7: taint: bytes that must not matter \
are stored, global address 0x55e2741e8c00: buffer 'out' at its offset 0 [block (0,0,0), warp 0, lane 0]
canary: shared_race: reported: emulated V100: canary_shared_race+0xf0: LDS.U R5, [R0]: shared_race: no barrier \
between this read and the access by warp 3, lane 31 at +0x90 STS [R0], R3, shared address 0x1fc [block (0,0,0), \
warp 0, lane 0]
canary: divergent_barrier: reported: emulated V100: canary_divergent_barrier+0x70: @!P0 BAR.SYNC 0x0: barrier: \
lanes 0xffff of the warp arrive without lanes 0xffff0000 [block (0,0,0), warp 0, lane 0]
canary: global_race: reported: emulated V100: canary_global_race+0x90: STG.E.SYS [R2], R5: global_race: block 0 of \
the grid wrote the same 4 bytes, and nothing orders the blocks, global address 0x55e2741fb200: buffer 'out' at its \
offset 0 [block (1,0,0), warp 0, lane 0]
canary: stack: reported: emulated V100: canary_stack+0xa0: LD.E.SYS R5, [R4]: stack: access below the stack \
pointer, 0x400: into a frame that was left, or that nobody entered, stack address 0x3a0 [block (0,0,0), warp 0, \
lane 0]
"""
