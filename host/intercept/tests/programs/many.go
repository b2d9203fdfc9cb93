package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

func main() {
	folder, err := os.MkdirTemp("", "many")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	var all sync.WaitGroup
	sizes := make([]int, 64)
	for i := range sizes {
		all.Add(1)
		go func() {
			defer all.Done()
			name := filepath.Join(folder, fmt.Sprint(i))
			for j := 0; j < 50; j++ {
				if err := os.WriteFile(name, make([]byte, 64), 0o600); err != nil {
					panic(err)
				}
			}
			read, err := os.ReadFile(name)
			if err != nil {
				panic(err)
			}
			sizes[i] = len(read)
		}()
	}
	all.Wait()
	sum := 0
	for _, size := range sizes {
		sum += size
	}
	fmt.Println(sum)
	out, err := exec.Command("/bin/echo", "from echo").Output()
	if err != nil {
		panic(err)
	}
	fmt.Print(string(out))
}
