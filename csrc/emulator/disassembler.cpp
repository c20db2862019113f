#include "emulator/disassembler.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "emulator/error.h"
#include "emulator/sha256.h"

extern char** environ;

namespace sm70emu {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_file(const fs::path& path, const void* data, size_t bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(static_cast<const char*>(data), std::streamsize(bytes));
    if (!out.flush()) fail("cannot write " + path.string());
}

// A folder of its own under the system's temporary folder, removed on destruction.
class ScratchFolder {
 public:
    ScratchFolder() {
        std::string pattern = (fs::temp_directory_path() / "sm70emu-XXXXXX").string();
        if (!mkdtemp(pattern.data())) fail("cannot make a temporary folder: " + std::string(std::strerror(errno)));
        path_ = pattern;
    }
    ~ScratchFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    const fs::path& path() const { return path_; }

 private:
    fs::path path_;
};

void run_to_file(const std::string& program, const fs::path& input, const fs::path& output) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    std::string name = program, flag_c = "-c", flag_hex = "-hex", file = input.string();
    char* arguments[] = {name.data(), flag_c.data(), flag_hex.data(), file.data(), nullptr};
    pid_t child = 0;
    const int error = posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error) {
        fail(
            "cannot run " + program + " (" + std::strerror(error) +
            "), which lists the machine code. It is part of the triton wheel: reinstall that, or put nvdisasm on PATH");
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) fail("waiting for " + program + ": " + std::strerror(errno));
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail(program + " could not disassemble the cubin");
}

std::string disassemble(const uint8_t* cubin, size_t bytes, const std::string& nvdisasm) {
    const ScratchFolder scratch;
    write_file(scratch.path() / "image.cubin", cubin, bytes);
    run_to_file(nvdisasm, scratch.path() / "image.cubin", scratch.path() / "image.sass");
    std::string listing = read_file(scratch.path() / "image.sass");
    if (listing.empty()) fail(nvdisasm + " printed nothing: reinstall the triton wheel");
    return listing;
}

// A kept listing begins with a line that holds the SHA-256 of the rest: register names are taken from the text, so a
// changed text must not be used.
std::string seal(const std::string& listing) {
    return sha256_hex(reinterpret_cast<const uint8_t*>(listing.data()), listing.size()) + "\n" + listing;
}

// The listing in a kept file, or nothing if there is none that is whole.
std::string unsealed(const fs::path& path) {
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return {};
    const std::string sealed = read_file(path);
    const size_t end = sealed.find('\n');
    if (end == std::string::npos) return {};
    std::string listing = sealed.substr(end + 1);
    return seal(listing) == sealed ? listing : std::string();
}

// Keeps a listing if that is possible. Renamed into place, so that a reader never sees half a file.
void keep(const fs::path& path, const std::string& listing) {
    std::error_code failed;
    fs::create_directories(path.parent_path(), failed);
    const fs::path partial = path.string() + "." + std::to_string(getpid());
    const std::string sealed = seal(listing);
    std::ofstream out(partial, std::ios::binary);
    out.write(sealed.data(), std::streamsize(sealed.size()));
    out.close();
    if (out) fs::rename(partial, path, failed);
    if (!out || failed) fs::remove(partial, failed);
}

}  // namespace

std::string listing_from_nvdisasm(const uint8_t* cubin, size_t bytes, const std::string& nvdisasm,
                                  const std::string& cache_folder) {
    if (cache_folder.empty()) return disassemble(cubin, bytes, nvdisasm);
    const fs::path kept = fs::path(cache_folder) / (sha256_hex(cubin, bytes) + ".listing");
    std::string listing = unsealed(kept);
    if (listing.empty()) {
        listing = disassemble(cubin, bytes, nvdisasm);
        keep(kept, listing);
    }
    return listing;
}

}  // namespace sm70emu
