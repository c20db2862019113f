/* C interface of the instruments, in the same DSO as emulator/api.h. */
#ifndef SM70EMU_INSTRUMENTS_API_H
#define SM70EMU_INSTRUMENTS_API_H

#include "emulator/api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Instruments serve any number of launches, one at a time: they are the observer of a launch request. Destroy them when
   no launch uses them any more. */
SM70EMU_API sm70emu_observer* sm70emu_instruments_create(void);
SM70EMU_API void sm70emu_instruments_destroy(sm70emu_observer* instruments);

/* Adds an instrument by name; options are lines "key=value". 0 on success; nonzero with the reason in `error`. */
SM70EMU_API int sm70emu_instruments_add(sm70emu_observer* instruments, const char* name, const char* options,
                                        char* error, uint64_t error_bytes);

/* Marks bytes of memory for an instrument, with a word that it knows. 0 on success. */
SM70EMU_API int sm70emu_instruments_mark(sm70emu_observer* instruments, const char* name, uint64_t address,
                                         uint64_t bytes, const char* what, char* error, uint64_t error_bytes);

/* What an instrument saw, as JSON text that the caller gives back to sm70emu_text_free; NULL on failure. */
SM70EMU_API char* sm70emu_instruments_report(sm70emu_observer* instruments, const char* name, char* error,
                                             uint64_t error_bytes);
SM70EMU_API void sm70emu_text_free(char* text);

#ifdef __cplusplus
}
#endif

#endif
