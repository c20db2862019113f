#include "disassembler.h"

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

#include "error.h"
#include "sha256.h"

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

/// A folder of its own under the system's temporary folder, removed on destruction.
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
    const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error) fail("cannot run " + program + ": " + std::strerror(error));
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("waiting for " + program + ": " + std::strerror(errno));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail(program + " could not disassemble the cubin");
}

}  // namespace

std::string listing_from_nvdisasm(const uint8_t* cubin, size_t bytes, const std::string& nvdisasm,
                                  const std::string& cache_folder) {
    fs::path kept;
    if (!cache_folder.empty()) {
        kept = fs::path(cache_folder) / (sha256_hex(cubin, bytes) + ".sass");
        if (fs::exists(kept)) return read_file(kept);
    }
    const ScratchFolder scratch;
    write_file(scratch.path() / "image.cubin", cubin, bytes);
    run_to_file(nvdisasm, scratch.path() / "image.cubin", scratch.path() / "image.sass");
    std::string listing = read_file(scratch.path() / "image.sass");
    if (!kept.empty()) {
        // Renamed into place, so that a reader never sees half a file.
        fs::create_directories(kept.parent_path());
        const fs::path partial = kept.string() + "." + std::to_string(getpid());
        write_file(partial, listing.data(), listing.size());
        fs::rename(partial, kept);
    }
    return listing;
}

}  // namespace sm70emu
