// Small files, and large ones by the threads of the library.
const fs = require('fs')
fs.mkdirSync('k')
for (let i = 0; i < 200; i++) fs.writeFileSync('k/' + i, '' + i)
let sum = 0
for (const name of fs.readdirSync('k')) sum += +fs.readFileSync('k/' + name)
const large = async () => {
  await fs.promises.writeFile('large', 'x'.repeat(1 << 20))
  await fs.promises.copyFile('large', 'copy')
  await fs.promises.appendFile('copy', 'end')
  console.log(sum, fs.statSync('copy').size, fs.readFileSync('copy').subarray(-3).toString())
}
large()
