/* C interface of the emulator, for callers that open it with dlopen. Every struct starts with its size, so that a
   caller built against an older header is recognised. All functions are thread-safe; errors come back as text. */
#ifndef SM70EMU_API_H
#define SM70EMU_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SM70EMU_API __attribute__((visibility("default")))
#define SM70EMU_ABI_VERSION 2u
#define SM70EMU_ERROR_BYTES 4096

typedef struct sm70emu_module sm70emu_module;

/* What watches a launch. instruments/instruments_api.h makes one. */
typedef struct sm70emu_observer sm70emu_observer;

typedef struct sm70emu_buffer {
    const char* name;
    uint64_t address; /* host address; also what kernels see */
    uint64_t bytes;
    uint32_t writable;
    uint32_t reserved;
} sm70emu_buffer;

typedef enum sm70emu_tensor_rounding { SM70EMU_TRUNCATE = 0, SM70EMU_NEAREST = 1 } sm70emu_tensor_rounding;

typedef struct sm70emu_launch_request {
    uint32_t struct_bytes; /* sizeof(sm70emu_launch_request) */
    uint32_t dynamic_shared_bytes;
    const char* kernel;
    uint32_t grid[3];
    uint32_t block[3];
    const void* parameters; /* copied to c[0x0][0x160] */
    uint64_t parameter_bytes;
    const sm70emu_buffer* buffers;
    uint64_t buffer_count;
    const uint64_t* sampled_blocks; /* linear block indices to run; NULL runs all */
    uint64_t sampled_block_count;
    uint64_t seed;              /* 0: natural order; otherwise shuffles blocks, warps and time slices */
    uint64_t instruction_limit; /* warp instructions a block before it is taken to hang; 0: default */
    uint32_t threads;           /* worker threads; 0: one per processor */
    uint32_t tensor_rounding;
    sm70emu_observer* observer; /* may be NULL */
} sm70emu_launch_request;

typedef struct sm70emu_launch_result {
    uint32_t struct_bytes; /* sizeof(sm70emu_launch_result) */
    uint32_t reserved;
    uint64_t warp_instructions;
    uint64_t blocks_run;
    uint64_t blocks_total;
    double seconds;
    char error[SM70EMU_ERROR_BYTES]; /* empty if the launch succeeded */
} sm70emu_launch_result;

typedef struct sm70emu_kernel_info {
    uint32_t struct_bytes; /* sizeof(sm70emu_kernel_info) */
    uint32_t registers;
    uint32_t static_shared_bytes;
    uint32_t local_bytes;
    uint32_t parameter_bytes;
    uint32_t max_threads; /* 0: no launch bound */
} sm70emu_kernel_info;

/* Version of the package's emulator, and of this interface. */
SM70EMU_API const char* sm70emu_version(void);
SM70EMU_API uint32_t sm70emu_abi_version(void);

/* Loads a cubin with its listing (the text of `nvdisasm -c -hex`). NULL on failure, with the reason in `error`. */
SM70EMU_API sm70emu_module* sm70emu_module_load(const void* cubin, uint64_t cubin_bytes, const char* listing,
                                                uint64_t listing_bytes, char* error, uint64_t error_bytes);

/* Same, but makes the listing with the given nvdisasm binary, and keeps it in `cache_folder` (may be NULL) under the
   SHA-256 of the cubin. */
SM70EMU_API sm70emu_module* sm70emu_module_load_with_nvdisasm(const void* cubin, uint64_t cubin_bytes,
                                                              const char* nvdisasm, const char* cache_folder,
                                                              char* error, uint64_t error_bytes);

SM70EMU_API void sm70emu_module_unload(sm70emu_module* module);

/* 0 on success; nonzero with the reason in `error`. Also decodes the kernel, so an instruction that is not implemented
   shows here. */
SM70EMU_API int sm70emu_kernel_query(sm70emu_module* module, const char* kernel, sm70emu_kernel_info* info, char* error,
                                     uint64_t error_bytes);

/* Host address and size of a __device__ or __constant__ variable; 0 on success. */
SM70EMU_API int sm70emu_symbol(sm70emu_module* module, const char* name, void** address, uint64_t* bytes, char* error,
                               uint64_t error_bytes);

/* Runs a kernel to its end. 0 on success; nonzero with the report in result->error. */
SM70EMU_API int sm70emu_launch(sm70emu_module* module, const sm70emu_launch_request* request,
                               sm70emu_launch_result* result);

#ifdef __cplusplus
}
#endif

#endif
