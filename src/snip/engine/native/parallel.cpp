// Two ways to run tasks: on torch's own OpenMP team (found at run time, see snip_use_team), or on
// a small pool of our own whose workers sleep. A second OpenMP runtime would spin against torch's.
#include "parallel.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

namespace snip {
namespace {

struct Job {
    std::atomic<int64_t> next{0};
    int64_t tasks;
    void (*run)(void*, int64_t);
    void* context;

    void work() {
        for (;;) {
            int64_t task = next.fetch_add(1, std::memory_order_relaxed);
            if (task >= tasks) return;
            run(context, task);
        }
    }
};

typedef void (*Team)(void (*)(void*), void*, unsigned threads, unsigned flags);
std::atomic<Team> team{nullptr};

// Workers wait on a condition variable. The pool is never destroyed: at exit the process takes the
// sleeping threads with it, and joining them from a static destructor can deadlock.
struct Pool {
    std::mutex running;  // one job at a time
    std::mutex mutex;
    std::condition_variable wake, done;
    Job* job = nullptr;
    uint64_t ticket = 0;  // number of the job, so that a worker takes each once
    int wanted = 0, busy = 0, workers = 0;

    void worker() {
        uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [&] { return ticket != seen; });
            seen = ticket;
            if (wanted == 0) continue;
            wanted--;
            busy++;
            Job* mine = job;
            lock.unlock();
            mine->work();
            lock.lock();
            if (--busy == 0) done.notify_one();
        }
    }

    void run(Job& work, int helpers) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            for (; workers < helpers; workers++) std::thread([this] { worker(); }).detach();
            job = &work;
            wanted = helpers;
            ticket++;
        }
        wake.notify_all();
        work.work();
        std::unique_lock<std::mutex> lock(mutex);
        wanted = 0;  // whoever has not woken yet is not needed any more
        done.wait(lock, [&] { return busy == 0; });
        job = nullptr;
    }
};

std::atomic<Pool*> pool{nullptr};

// In a forked child neither the pool's threads nor OpenMP's exist: forget both (the old pool's
// memory is left alone, its locks may be held by threads that are gone) and start afresh.
void forget_threads() {
    team.store(nullptr);
    pool.store(new Pool);
}

Pool& the_pool() {
    static std::once_flag once;
    std::call_once(once, [] {
        pool.store(new Pool);
        pthread_atfork(nullptr, nullptr, forget_threads);
    });
    return *pool.load();
}

}  // namespace

void parallel_for(int64_t tasks, int threads, void (*run)(void*, int64_t), void* context) {
    Job job;
    job.tasks = tasks;
    job.run = run;
    job.context = context;
    if (threads <= 1 || tasks <= 1) return job.work();
    Pool& own = the_pool();
    if (Team parallel_region = team.load()) {
        // Always torch's full number: libgomp ends and restarts threads when a team's size changes.
        return parallel_region([](void* j) { static_cast<Job*>(j)->work(); }, &job,
                               static_cast<unsigned>(threads), 0);
    }
    std::unique_lock<std::mutex> lock(own.running, std::try_to_lock);
    if (!lock.owns_lock()) return job.work();  // another Python thread has the pool: do it alone
    own.run(job, static_cast<int>(threads < tasks ? threads : tasks) - 1);
}

namespace {
struct Buffers {
    void* data[SLOTS] = {};
    int64_t bytes[SLOTS] = {};
    ~Buffers() {
        for (void* p : data) std::free(p);
    }
};
thread_local Buffers buffers;
}  // namespace

float* scratch(int slot, int64_t floats) {
    int64_t bytes = (floats * 4 + 127) / 64 * 64;  // and a line to spare for reads of whole vectors
    if (buffers.bytes[slot] < bytes) {
        std::free(buffers.data[slot]);
        if (posix_memalign(&buffers.data[slot], 64, static_cast<size_t>(bytes)) != 0) {
            std::fprintf(stderr, "snip: no memory for %lld bytes of scratch\n",
                         static_cast<long long>(bytes));
            std::abort();
        }
        std::memset(buffers.data[slot], 0, static_cast<size_t>(bytes));
        buffers.bytes[slot] = bytes;
    }
    return static_cast<float*>(buffers.data[slot]);
}

}  // namespace snip

// region is torch's GOMP_parallel (libgomp, and libiomp5 / libomp for compatibility), or null for
// our own pool. Taken as an address: linking to libgomp could load a second copy of it.
extern "C" void snip_use_team(void* region) {
    snip::the_pool();
    snip::team.store(reinterpret_cast<snip::Team>(region));
}
