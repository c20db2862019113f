#include "instruments/instruments_api.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "emulator/api_errors.h"
#include "emulator/error.h"
#include "instruments/instruments.h"

using sm70emu::fail;
using sm70emu::guarded;
using sm70emu::Instruments;
using sm70emu::LaunchObserver;

namespace {

Instruments& from_handle(sm70emu_observer* handle) {
    return *static_cast<Instruments*>(reinterpret_cast<LaunchObserver*>(handle));
}

}  // namespace

extern "C" {

sm70emu_observer* sm70emu_instruments_create(void) {
    return reinterpret_cast<sm70emu_observer*>(static_cast<LaunchObserver*>(new Instruments));
}

void sm70emu_instruments_destroy(sm70emu_observer* instruments) {
    delete reinterpret_cast<LaunchObserver*>(instruments);
}

int sm70emu_instruments_add(sm70emu_observer* instruments, const char* name, const char* options, char* error,
                            uint64_t error_bytes) {
    const bool ok = guarded(error, error_bytes, [&] { from_handle(instruments).add(name, options ? options : ""); });
    return ok ? 0 : 1;
}

int sm70emu_instruments_mark(sm70emu_observer* instruments, const char* name, uint64_t address, uint64_t bytes,
                             const char* what, char* error, uint64_t error_bytes) {
    const bool ok = guarded(error, error_bytes, [&] { from_handle(instruments).mark(name, address, bytes, what); });
    return ok ? 0 : 1;
}

char* sm70emu_instruments_report(sm70emu_observer* instruments, const char* name, char* error, uint64_t error_bytes) {
    char* text = nullptr;
    guarded(error, error_bytes, [&] {
        const std::string report = from_handle(instruments).report(name);
        text = static_cast<char*>(std::malloc(report.size() + 1));
        if (!text) fail("no memory for a report of " + std::to_string(report.size()) + " bytes");
        std::memcpy(text, report.c_str(), report.size() + 1);
    });
    return text;
}

void sm70emu_text_free(char* text) {
    std::free(text);
}

}  // extern "C"
