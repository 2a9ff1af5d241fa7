// The exceptions that kernels throw, and their sentences.
#include "errors.hpp"

#include <cstdio>
#include <exception>
#include <new>
#include <system_error>

namespace snip {
namespace {

struct Error {
    Status status;
    char sentence[200];
};

thread_local Error last{DONE, ""};

int32_t keep(Status status, const char* sentence) {
    last.status = status;
    std::snprintf(last.sentence, sizeof last.sentence, "%s", sentence);
    return status;
}

}  // namespace

void refuse(const char* sentence, int64_t value) {
    Error error{REFUSED, ""};
    std::snprintf(error.sentence, sizeof error.sentence, "%s %lld", sentence, static_cast<long long>(value));
    throw error;
}

void no_memory(int64_t bytes) {
    Error error{NO_MEMORY, ""};
    std::snprintf(error.sentence, sizeof error.sentence, "not enough memory for %lld bytes of scratch",
                  static_cast<long long>(bytes));
    throw error;
}

int32_t status_of_exception() {
    try {
        throw;
    } catch (const Error& error) {
        return keep(error.status, error.sentence);
    } catch (const std::bad_alloc&) {
        return keep(NO_MEMORY, "not enough memory to start a job");
    } catch (const std::system_error& error) {
        return keep(NO_THREADS, error.what());
    } catch (const std::exception& error) {
        return keep(FAILED, error.what());
    } catch (...) {
        return keep(FAILED, "an unknown exception");
    }
}

}  // namespace snip

// The sentence of the last error in this thread.
extern "C" const char* snip_error() { return snip::last.sentence; }
